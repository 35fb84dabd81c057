-- A fast plain workload for benchmarks: tuples of about 100 bytes, many transactions a block.
local together = require('together')
local random = require('random')
local M = {}
local WIDTH = 300

function M.create(side)
    if side == 'B' then box.schema.space.create('shift'):create_index('primary') end
    for _, name in ipairs({'shared', side == 'A' and 'own_a' or 'own_b', 'serial'}) do
        local s = box.schema.space.create(name)
        s:format({{'id', 'unsigned'}, {'name', 'string'}, {'n', 'integer'}, {'ratio', 'double'}, {'note', 'string'}})
        s:create_index('primary', {parts = {1, 'unsigned'}})
    end
end

local NOTE = 'the quick brown fox jumps over the lazy dog'

-- Of ten changes seven are REPLACEs, two UPDATEs, one a DELETE. Keys: about 0.4 a change, so most are written again.
local function change(s, id, kind, salt, side)
    if kind < 7 then
        s:replace({id, side .. ' row ' .. id, salt, id / 8 + 0.0625, ('%s %08x'):format(NOTE, salt)})
    elseif kind < 9 then
        s:update(id, {{'+', 3, kind}, {'=', 'note', NOTE .. salt}})
    else
        s:delete(id)
    end
end

function M.run(o)
    local next = random.new(o.side == 'A' and 11 or 12)
    local spaces = {box.space.shared, o.side == 'A' and box.space.own_a or box.space.own_b}
    local keys = math.max(10, math.floor(o.rows * 0.4))
    local shift = o.side == 'A' and 0 or math.floor(keys / 4)
    for _ = 1, math.ceil(o.rows / WIDTH) do
        together(WIDTH, function()
            change(spaces[next(1, 2)], next(1, math.floor(keys / 2)) + shift, next(0, 9), next(0, 2147483645), o.side)
        end)
    end
end

function M.serial(o)
    for id = 1, o.rows do
        box.space.serial:replace({id, 'serial row ' .. id, id, id / 8 + 0.0625, NOTE})
    end
end

return M
