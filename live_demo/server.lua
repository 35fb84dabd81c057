-- Starts one member of the live demonstration from its environment, and writes to it until it ends.
--   DEMO_CFG    box.cfg as JSON; `replication` names the other member where this one joins it
--   DEMO_SOCKET the unix socket of this member, DEMO_OTHER of the other one, which is followed as soon as it is ready
--   DEMO_OWN    0 or 1: the member writes the keys with this remainder, so that inside a replicaset nobody competes
--   DEMO_PARENT the process that started it, where the server is to end with it, however that one ends
local ffi, fio, fiber = require('ffi'), require('fio'), require('fiber')
local parent = os.getenv('DEMO_PARENT')
if parent ~= nil then
    ffi.cdef [[ int prctl(int option, unsigned long arg2, ...); int getppid(void); ]]
    local PR_SET_PDEATHSIG, SIGTERM = 1, 15
    ffi.C.prctl(PR_SET_PDEATHSIG, ffi.cast('unsigned long', SIGTERM))
    if ffi.C.getppid() ~= tonumber(parent) then os.exit(1) end
end

local KEYS, PAUSE = 40, 0.1
local own, other = tonumber(os.getenv('DEMO_OWN')), os.getenv('DEMO_OTHER')

box.cfg(require('json').decode(os.getenv('DEMO_CFG')))

if box.space.accounts == nil then
    -- `super` so that members of any version may join each other; the socket is in a private folder.
    box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
    local format = {{'id', 'unsigned'}, {'owner', 'string'}, {'balance', 'integer'}, {'updated', 'number'}}
    box.schema.space.create('accounts', {format = format}):create_index('id')
end

local function write()
    local accounts = box.space.accounts
    while true do
        local id, dice = 2 * math.random(KEYS / 2) + own, math.random(10)
        if dice == 1 then
            accounts:delete(id)
        elseif dice <= 4 then
            accounts:replace({id, os.getenv('DEMO_NAME'), math.random(1000), fiber.time()})
        else
            -- The row of the log has the operation alone: what the tuple becomes is computed by its reader.
            accounts:update(id, {{'+', 'balance', 10}, {'=', 'updated', fiber.time()}})
        end
        fiber.sleep(PAUSE)
    end
end

-- A master that asks for a member which is not ready yet would take no writes meanwhile, nor let that member join.
local function follow()
    if #(box.cfg.replication or {}) > 0 then return end
    while not fio.path.exists(other .. '.ready') do fiber.sleep(0.05) end
    box.cfg({replication = {'unix/:' .. other}})
end

math.randomseed(own + os.time())
fiber.create(function()
    follow()
    while box.info.ro do fiber.sleep(0.05) end
    write()
end)
fio.open(os.getenv('DEMO_SOCKET') .. '.ready', {'O_CREAT', 'O_WRONLY'}, tonumber('600', 8)):close()
io.stdout:write('ready\n')
io.stdout:flush()
