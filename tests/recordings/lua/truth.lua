-- Writes what the server itself reports: every space's tuples, `_cluster`, vclock, uuids.
local digest = require('digest')
local fio = require('fio')
local json = require('json').new()
local msgpack = require('msgpack')
json.cfg({encode_max_depth = 64})
local M = {}
local READABLE_ROWS = 10000 -- of a large space only these are shown as JSON

-- Of the system spaces those that say what a log means.
local SYSTEM = {_schema = true, _space = true, _index = true, _cluster = true, _truncate = true, _sequence = true,
    _sequence_data = true, _space_sequence = true}

local function write(path, text)
    local file = fio.open(path, {'O_WRONLY', 'O_CREAT', 'O_TRUNC'}, tonumber('644', 8))
    if file == nil or not file:write(text) then error('cannot write ' .. path) end
    file:close()
end

-- JSON cannot say everything that MessagePack can (a map's keys, an unknown extension): such a tuple reads as why.
local function shown(tuple)
    local ok, text = pcall(json.encode, tuple)
    return ok and text or json.encode('not JSON: ' .. tostring(text))
end

local function save_space(directory, space)
    local exact, readable = {}, {}
    for _, tuple in space:pairs() do
        table.insert(exact, digest.base64_encode(msgpack.encode(tuple), {nowrap = true}))
        if #exact <= READABLE_ROWS then table.insert(readable, shown(tuple)) end
    end
    local name = fio.pathjoin(directory, space.name)
    write(name .. '.mpb64', table.concat(exact, '\n') .. '\n')
    write(name .. '.json', table.concat(readable, '\n') .. '\n')
    return #exact
end

-- Bytes come as they are in the `.mpb64`; the `.json` is for reading (a string that is not UTF-8 stays as it is).
function M.save(directory, name)
    fio.mktree(directory)
    local counts = {}
    for _, row in box.space._space:pairs() do
        local space, user = box.space[row.id], row.id > 511
        if (user or SYSTEM[space.name]) and space.index[0] ~= nil then
            local n = save_space(directory, space)
            if user then counts[space.name] = n end
        end
    end
    local cluster = setmetatable({}, {__serialize = 'seq'})
    for _, row in box.space._cluster:pairs() do table.insert(cluster, {row[1], row[2]}) end
    local info, vclock = box.info, {}
    for id, lsn in pairs(info.vclock) do vclock[tostring(id)] = tonumber(lsn) end
    write(fio.pathjoin(directory, 'info.json'), json.encode({
        name = name, uuid = info.uuid, cluster_uuid = info.cluster.uuid, id = info.id, lsn = tonumber(info.lsn),
        vclock = vclock, signature = tonumber(info.signature), version = info.version, ro = info.ro,
        _cluster = cluster, counts = counts}) .. '\n')
end

return M
