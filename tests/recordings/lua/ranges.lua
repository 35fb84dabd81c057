-- Spaces whose primary keys have every type, alone and together, with rows that come and go by key and by range.
-- Needs a server with delete_range (3.9). The same seed gives the same acts.
local ffi = require('ffi')
local decimal, uuid, datetime = require('decimal'), require('uuid'), require('datetime')
local msgpack = require('msgpack')

local M = {}

local state = 20260820
local function die(n)
    state = (state * 16807) % 2147483647
    return math.floor(state / 64) % n
end
local function pick(list) return list[die(#list) + 1] end
local function double(number) return ffi.cast('double', number) end
local function binary(text) return require('varbinary').new(text) end

local UNSIGNED = {0, 1, 2, 9, 127, 128, 255, 256, 65535, 65536, 4294967296ULL, 9223372036854775808ULL,
    18446744073709551615ULL}
local INTEGERS = {-9223372036854775807LL, -70000, -129, -128, -33, -32, -1, 0, 1, 127, 128, 300, 70000}
local DOUBLES = {double(-1e300), double(-2.5), double(-0.1), double(0), double(0.1), double(0.3), double(1), double(2.5),
    double(1 / 3), double(1e15), double(1e300), double(math.huge), double(-math.huge)}
local DECIMALS = {'-99999999999999999999999999999999999999', '-1.5', '-0.001', '0', '0.1', '0.25', '1', '1.50', '10',
    '12345678901234567890.5', '1e20'}
for i, text in ipairs(DECIMALS) do DECIMALS[i] = decimal.new(text) end
local STRINGS = {'', '\0', '\0\1', '\1', 'a', 'A', 'a\0', 'ab', 'abc', 'b', 'ä', 'я', string.rep('x', 40)}
local BINARIES = {}
for i, text in ipairs(STRINGS) do BINARIES[i] = binary(text) end
local UUIDS = {}
for i, text in ipairs({'00000000-0000-0000-0000-000000000000', '00000000-0000-4000-8000-000000000001',
    '64d22e4d-ac92-4a23-899a-e59f34af5479', 'ffffffff-ffff-4fff-8fff-ffffffffffff'}) do
    UUIDS[i] = uuid.fromstr(text)
end
local DATETIMES = {}
for i, seconds in ipairs({-86400, -1, 0, 1, 1700000000, 4102444800}) do
    DATETIMES[i] = datetime.new({timestamp = seconds, tzoffset = i % 2 == 0 and 180 or 0})
    DATETIMES[#DATETIMES + 1] = datetime.new({timestamp = seconds, nsec = 5})
end
local BOOLEANS = {true, false}
local function joined(...)
    local found = {}
    for _, list in ipairs({...}) do for _, value in ipairs(list) do table.insert(found, value) end end
    return found
end
-- A double and a decimal are in one key only where 15 digits tell them apart.
local NUMBERS = joined(INTEGERS, DECIMALS, {double(-2.5), double(0.3), double(0.5), double(1e300), double(2)}, UNSIGNED)
local SCALARS = joined(NUMBERS, STRINGS, BINARIES, UUIDS, DATETIMES, BOOLEANS)
local SMALL = {-128, -100, -33, -32, -1, 0, 1, 31, 100, 127}

-- Name, parts of the key, values of each part, and further options of the index.
local SPACES = {
    {'k_unsigned', {{1, 'unsigned'}}, {UNSIGNED}},
    {'k_unhinted', {{1, 'unsigned'}}, {UNSIGNED}, {hint = false}},
    {'k_integer', {{1, 'integer'}}, {INTEGERS}},
    {'k_number', {{1, 'number'}}, {NUMBERS}},
    {'k_double', {{1, 'double'}}, {DOUBLES}},
    {'k_decimal', {{1, 'decimal'}}, {DECIMALS}},
    {'k_string', {{1, 'string'}}, {STRINGS}},
    {'k_binary_collation', {{1, 'string', collation = 'binary'}}, {STRINGS}},
    {'k_varbinary', {{1, 'varbinary'}}, {BINARIES}},
    {'k_boolean', {{1, 'boolean'}, {2, 'unsigned'}}, {BOOLEANS, UNSIGNED}},
    {'k_uuid', {{1, 'uuid'}, {2, 'integer'}}, {UUIDS, INTEGERS}},
    {'k_datetime', {{1, 'datetime'}}, {DATETIMES}},
    {'k_scalar', {{1, 'scalar'}}, {SCALARS}},
    {'k_int8', {{1, 'int8'}, {2, 'int64'}}, {SMALL, INTEGERS}},
    {'k_descending', {{1, 'integer', sort_order = 'desc'}}, {INTEGERS}},
    {'k_both_ways', {{1, 'string'}, {2, 'number', sort_order = 'desc'}, {3, 'boolean'}},
        {{'', 'a', 'ab', 'b'}, NUMBERS, BOOLEANS}},
    {'k_swapped', {{3, 'string'}, {1, 'unsigned'}}, {STRINGS, UNSIGNED}},
    {'k_path', {{field = 2, type = 'string', path = 'name.first'}, {field = 2, type = 'unsigned', path = 'at[1]'}},
        {STRINGS, UNSIGNED}},
}

local function tuple_of(spec, key)
    if spec[1] == 'k_path' then return {die(9), {name = {first = key[1]}, at = {key[2]}}} end
    local tuple = {die(9), die(9), die(9), die(9)}
    for number, part in ipairs(spec[2]) do tuple[part[1]] = key[number] end
    return tuple
end

local function key_of(spec)
    local key = {}
    for number, values in ipairs(spec[3]) do key[number] = pick(values) end
    return key
end

local function bound_of(spec)
    local key, count = key_of(spec), die(#spec[2] + 1)
    if count == 0 and die(3) > 0 then count = 1 end
    for i = #key, count + 1, -1 do key[i] = nil end
    return key
end

local function act(spec, space)
    local dice, key = die(20), key_of(spec)
    if dice < 12 then
        space:replace(tuple_of(spec, key))
    elseif dice < 14 and spec[1] ~= 'k_path' then
        space:upsert(tuple_of(spec, key), {{'=', 5, die(99)}})
    elseif dice < 15 and spec[1] ~= 'k_path' then
        space:update(key, {{'=', 5, die(99)}})
    elseif dice < 16 then
        space:delete(key)
    else
        local from, to = bound_of(spec), bound_of(spec)
        -- The server refuses a range whose end is not behind its beginning.
        if not pcall(space.delete_range, space, from, to) then pcall(space.delete_range, space, to, from) end
    end
end

local function held()
    local found = {}
    for _, spec in ipairs(SPACES) do
        local tuples = {}
        for _, tuple in box.space[spec[1]]:pairs() do table.insert(tuples, (string.hex(msgpack.encode(tuple)))) end
        found[spec[1]] = tuples
    end
    return found
end

-- Plays all rounds; each ends a log. Returns what the spaces hold after each.
function M.play()
    for _, spec in ipairs(SPACES) do
        local space = box.schema.space.create(spec[1])
        local options = spec[4] or {}
        options.parts = spec[2]
        space:create_index('pk', options)
    end
    local truths = {}
    for round = 1, 12 do
        for _, spec in ipairs(SPACES) do
            box.begin()
            for _ = 1, 5 + die(6) do act(spec, box.space[spec[1]]) end
            box.commit()
        end
        truths[round] = held()
        box.snapshot()
    end
    return truths
end

return M
