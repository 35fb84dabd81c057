-- Vinyl spaces whose ranges are split, so that runs are shared by ranges of which some are compacted. The same seed gives
-- the same acts; which ranges are compacted at a checkpoint depends on time.
local fiber, held = require('fiber'), require('held')
local decimal, ffi = require('decimal'), require('ffi')

local M = {}
local ROUNDS, KEYS, ACTS = 9, 240, 60
local SMALL = {range_size = 2048, page_size = 256, run_count_per_level = 1, run_size_ratio = 2}

local draw = require('random').new(20261127)

local function mixed(n)
    local kinds = {n, n + 0.5, tostring(n), n % 2 == 0, decimal.new(n) / 4, ffi.cast('double', -n)}
    return kinds[n % 6 + 1]
end

-- Makes the key of a space from a number.
M.keys = {
    split_unsigned = function(n) return {n * 70} end,
    split_indexed = function(n) return {n - 75} end,
    split_pair = function(n) return {('key %d'):format(n % 7), n * 1000000007} end,
    split_scalar = function(n) return {mixed(n)} end,
}
local names = {'split_unsigned', 'split_indexed', 'split_pair', 'split_scalar'}
local TYPES = {
    split_unsigned = {'unsigned'}, split_indexed = {'integer'}, split_pair = {'string', 'integer'},
    split_scalar = {'scalar'},
}

local function create(name)
    local space = box.schema.space.create(name, {engine = 'vinyl'})
    local parts, options = {}, table.copy(SMALL)
    for number, kind in ipairs(TYPES[name]) do table.insert(parts, {number, kind}) end
    options.parts = parts
    space:create_index('pk', options)
    if name == 'split_indexed' then
        options.parts, options.unique = {{3, 'integer'}}, false
        space:create_index('n', options)
    end
end

-- Changes one of `count` keys from a first one on.
local function act(space, first, count)
    local key, kind = M.keys[space.name](first + draw(0, count - 1)), draw(0, 7)
    local field = #key + 2
    local tuple = table.copy(key)
    table.insert(tuple, ('%s %d'):format(space.name, draw(0, 999)))
    table.insert(tuple, draw(0, 8))
    if kind < 3 then
        space:delete(key)
    elseif kind == 3 then
        space:upsert(tuple, {{'+', field, 10}})
    elseif kind == 4 and space:get(key) ~= nil then
        space:update(key, {{'+', field, 100}})
    else
        space:replace(tuple)
    end
end

-- Waits until no range is to be compacted.
local function settle()
    for _, name in ipairs(names) do
        for _ = 1, 1000 do
            if box.space[name].index.pk:stat().disk.compaction.queue.bytes == 0 then break end
            fiber.sleep(0.005)
        end
    end
end

-- Returns what the server held at each checkpoint, and at the end.
function M.play()
    for _, name in ipairs(names) do create(name) end
    local truths = {}
    for round = 1, ROUNDS do
        for _, name in ipairs(names) do
            local space = box.space[name]
            if round == 1 then
                for n = 0, KEYS - 1 do
                    local tuple = M.keys[name](n)
                    table.insert(tuple, ('%s first'):format(name))
                    table.insert(tuple, n)
                    space:replace(tuple)
                end
            end
            -- Changes of a few keys: compacted there, they leave other ranges with the old runs.
            local first = draw(0, KEYS * 3 / 4 - 1)
            for n = first, first + 9 do space:delete(M.keys[name](n)) end
            for _ = 1, ACTS do act(space, first, KEYS / 4) end
        end
        table.insert(truths, held(names))
        box.snapshot()
        settle()
    end
    table.insert(truths, held(names))
    return truths
end

-- Returns the number of ranges of each space.
function M.ranges()
    local found = {}
    for _, name in ipairs(names) do found[name] = box.space[name].index.pk:stat().range_count end
    return found
end

return M
