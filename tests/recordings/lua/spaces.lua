-- The spaces of the recording. A name that Spark cannot take, every field type of 2.6, every kind of primary key.
local M = {}

local function create(name, format, parts, options)
    local space = box.schema.space.create(name, options or {})
    if format then space:format(format) end
    space:create_index('primary', {parts = parts})
    return space
end

-- Spaces of one replicaset alone, made first: so the ids of all others differ between the replicasets.
function M.extra(n)
    for i = 1, n do create('only_here_' .. i, nil, {1, 'unsigned'}):insert({i, 'of one replicaset alone'}) end
end

local function common()
    local accounts = create('accounts', {
        {'id', 'unsigned'}, {'name', 'string'}, {'balance', 'decimal'}, {'updated', 'number'}}, {1, 'unsigned'})
    accounts:create_index('by_name', {parts = {{2, 'string', collation = 'unicode_ci'}}, unique = false})
    create('counters', {{'name', 'string'}, {'value', 'integer'}, {'mask', 'unsigned'}, {'hits', 'number'},
        {name = 'text', type = 'string', is_nullable = true}}, {1, 'string'})
    create('docs', nil, {1, 'unsigned'})
    create('audit', {{'id', 'unsigned'}, {'what', 'string'}}, {1, 'unsigned'})
    create('lagged', {{'id', 'unsigned'}, {'side', 'string'}, {'updated', 'number'}}, {1, 'unsigned'})
    create('ledger', {{'id', 'unsigned'}, {'sum', 'integer'}, {'memo', 'string'}}, {1, 'unsigned'}, {is_sync = true})
    create('loc', nil, {1, 'unsigned'}, {is_local = true})
    create('tmp', nil, {1, 'unsigned'}, {temporary = true})
    create('vin', {{'id', 'unsigned'}, {'v', 'string'}, {name = 'n', type = 'integer', is_nullable = true}},
        {1, 'unsigned'}, {engine = 'vinyl'})
    create('txspace', {{'id', 'unsigned'}, {'step', 'string'}}, {1, 'unsigned'})
    local auto = box.schema.space.create('auto')
    auto:format({{'id', 'unsigned'}, {name = 'v', type = 'any', is_nullable = true}})
    box.schema.sequence.create('auto_ids', {start = 10, step = 10})
    auto:create_index('primary', {sequence = 'auto_ids'})
end

-- Spaces that DDL changes later on (see definition.lua).
local function changing()
    create('to_drop', nil, {1, 'unsigned'})
    create('to_trunc', {{'id', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
    create('again', {{'id', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
    create('renamed', {{'id', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
    create('old_name', {{'id', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
    create('widened', {{'id', 'unsigned'}, {'v', 'unsigned'}}, {1, 'unsigned'})
    create('rekeyed', {{'id', 'unsigned'}, {'part', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
end

local function types()
    create('types', {
        {'id', 'uuid'}, {'unsigned', 'unsigned'}, {'string', 'string'}, {'number', 'number'}, {'double', 'double'},
        {'integer', 'integer'}, {'boolean', 'boolean'}, {'varbinary', 'varbinary'}, {'scalar', 'scalar'},
        {'decimal', 'decimal'}, {'array', 'array'}, {'map', 'map'}, {name = 'any', type = 'any', is_nullable = true},
        {name = 'maybe', type = 'string', is_nullable = true}}, {1, 'uuid'})
    create('keys_number', {{'k', 'number'}, {'v', 'string'}}, {1, 'number'})
    create('keys_scalar', {{'k', 'scalar'}, {'v', 'string'}}, {1, 'scalar'})
    create('keys_integer', {{'k', 'integer'}, {'v', 'string'}}, {1, 'integer'})
    create('keys_decimal', {{'k', 'decimal'}, {'v', 'string'}}, {1, 'decimal'})
    create('keys_varbinary', {{'k', 'varbinary'}, {'v', 'string'}}, {1, 'varbinary'})
    create('keys_two', {{'v', 'string'}, {'b', 'string'}, {'a', 'unsigned'}}, {3, 'unsigned', 2, 'string'})
    create('keys_unsigned', {{'k', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
    create('keys_path', {{'doc', 'map'}, {'v', 'string'}}, {{1, 'integer', path = 'id'}})
    create('big', {{'id', 'unsigned'}, {'u', 'unsigned'}, {'n', 'number'}, {'i', 'integer'}, {'d', 'double'},
        {'x', 'decimal'}}, {1, 'unsigned'})
    create('raw', {{'id', 'unsigned'}, {'s', 'string'}, {name = 'a', type = 'any', is_nullable = true}}, {1, 'unsigned'})
end

local function odd_names()
    create('my-space', {{'id', 'unsigned'}, {'a b', 'string'}, {name = 'x.y', type = 'string', is_nullable = true}},
        {1, 'unsigned'})
    create('a.b', {{'id', 'unsigned'}, {'_lsn', 'string'}}, {1, 'unsigned'})
    create('Счета', {{'Id', 'unsigned'}, {'id', 'string'}, {'имя', 'string'}}, {1, 'unsigned'})
    box.execute([[CREATE TABLE sqlt (id INTEGER PRIMARY KEY, v STRING, d DOUBLE)]])
    create('sqlt', {{'id', 'unsigned'}, {'v', 'string'}}, {1, 'unsigned'})
end

function M.create()
    common()
    changing()
    types()
    odd_names()
end

return M
