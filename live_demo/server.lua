-- Starts one member of the live demonstration from its environment, and writes to it until it ends.
--   DEMO_CFG    box.cfg as JSON; `replication` names the other member if this one joins it
--   DEMO_SOCKET the unix socket of this member
--   DEMO_OTHER  the unix socket of the other member, which this one follows as soon as it is ready
--   DEMO_OWN    0 or 1: the member writes even or odd keys, so the two members never write the same key
--   DEMO_PARENT the id of the parent process; if it is set, the server ends when that process ends, for any reason
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
    -- With `super`, members of any version may join each other; the socket is in a private folder.
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
            -- The log has only the operation of this row; a reader of the log must compute the new tuple.
            accounts:update(id, {{'+', 'balance', 10}, {'=', 'updated', fiber.time()}})
        end
        fiber.sleep(PAUSE)
    end
end

-- While a master waits for a member that is not ready, it is read-only, so that member could not join it.
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
