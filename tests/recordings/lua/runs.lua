-- Vinyl spaces whose runs have several statements of one key, in one run and over several. The same seed gives the same
-- acts.
local fiber = require('fiber')
local held = require('held')

local M = {}
local ROUNDS, KEYS = 5, 12

local state = 20261123
local function die(n)
    state = (state * 16807) % 2147483647
    return math.floor(state / 64) % n
end

-- A space that is not read keeps its UPSERTs until they are written.
local function act(space)
    local key, kind = die(KEYS), die(6)
    local reads = space.name ~= 'runs_unread'
    if kind == 0 then
        space:delete(key)
    elseif kind == 1 or kind <= 4 and not reads then
        space:upsert({key, 'upserted', 1}, {{'+', 3, 10}})
    elseif kind == 2 and space:get(key) ~= nil then
        space:update(key, {{'=', 2, 'updated'}, {'+', 3, 100}})
    else
        -- Few values, so that a key has a tuple again that it had before.
        space:replace({key, 'value ' .. die(2), die(2)})
    end
end

-- Begins a transaction that reads, so that the next checkpoint keeps what it sees.
local function reader(space)
    local go_on = fiber.channel(1)
    fiber.create(function()
        box.begin()
        for key = 0, space.name == 'runs_unread' and 0 or KEYS - 1 do space:get(key) end
        space:replace({1000 + die(10), 'never', 0})
        go_on:get()
        box.rollback()
    end)
    fiber.yield()
    return go_on
end

-- Returns what the server held at each checkpoint, and at the end.
function M.play()
    local format = {{'id', 'unsigned'}, {'state', 'string'}, {'n', 'integer'}}
    M.names = {'runs', 'runs_indexed', 'runs_unread'}
    for _, name in ipairs(M.names) do
        local space = box.schema.space.create(name, {engine = 'vinyl', format = format})
        space:create_index('pk', {page_size = 64, run_count_per_level = 100})
    end
    box.space.runs_indexed:create_index('n', {parts = {{3, 'integer'}}, unique = false})
    local found = {}
    for _ = 1, ROUNDS do
        local readers = {}
        for _, name in ipairs(M.names) do
            local space = box.space[name]
            for _ = 1, 2 do
                for _ = 1, 12 do act(space) end
                table.insert(readers, reader(space))
            end
            for _ = 1, 12 do act(space) end
        end
        box.snapshot()
        table.insert(found, held(M.names))
        for _, one in ipairs(readers) do one:put(true) end
        fiber.yield()
    end
    for _, name in ipairs(M.names) do
        for _ = 1, 12 do act(box.space[name]) end
    end
    table.insert(found, held(M.names))
    return found
end

return M
