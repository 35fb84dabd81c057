-- Starts one server with TARANTOOL_CFG (box.cfg as JSON), runs the code in TARANTOOL_LUA, and prints `ready`.
-- The kernel ends the server when its parent process ends, for any reason.
local ffi = require('ffi')
ffi.cdef [[ int prctl(int option, unsigned long arg2, ...); int getppid(void); ]]
local PR_SET_PDEATHSIG, SIGTERM = 1, 15
ffi.C.prctl(PR_SET_PDEATHSIG, ffi.cast('unsigned long', SIGTERM))
if ffi.C.getppid() ~= tonumber(os.getenv('TARANTOOL_PARENT')) then os.exit(1) end

local lua_path = os.getenv('TARANTOOL_LUA_PATH')
if lua_path ~= '' then package.path = lua_path .. '/?.lua;' .. package.path end

local cfg = require('json').decode(os.getenv('TARANTOOL_CFG'))
-- Replication and the tests' client use guest, on a private socket; the bootstrap leader grants it all rights.
box.cfg(cfg)
if not box.info.ro then
    box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
end
assert(loadstring(os.getenv('TARANTOOL_LUA')))()
io.stdout:write('ready\n')
io.stdout:flush()
