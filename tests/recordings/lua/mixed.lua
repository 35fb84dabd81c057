-- A repeatable mix of requests over accounts, counters and docs, in group commits, transactions in between.
local decimal = require('decimal')
local random = require('random')
local together = require('together')
local M = {}

local NAMES = {'anna', 'борис', 'chen', "o'neil", 'q"zz', '佐藤', 'мария', ''}

local function account(o, next, id)
    local balance = decimal.new(next(-9999999, 9999999)) / 100
    return {id, NAMES[next(1, #NAMES)] .. '-' .. o.side .. '-' .. id, balance, o.now + next(0, 4000) / 8}
end

local function document(o, next, id)
    return {id, {name = o.side .. id, tags = {next(0, 9), next(10, 300)}, at = {x = next(0, 9), y = next(0, 9) + 0.5}},
        {next(0, 100), next(0, 100000)}, next(0, 1) == 1, string.rep(o.side, next(0, 12))}
end

local requests = {
    function(o, next, id) box.space.accounts:replace(account(o, next, id)) end,
    function(o, next, id) box.space.accounts:replace(account(o, next, id)) end,
    function(o, next, id)
        box.space.accounts:update(id, {{'+', 'balance', decimal.new('0.01')}, {'=', 4, o.now + next(0, 4000) / 8}})
    end,
    function(o, next, id) pcall(box.space.accounts.insert, box.space.accounts, account(o, next, id)) end,
    function(_, _, id) box.space.accounts:delete(id) end,
    function(o, next, id)
        box.space.counters:upsert({'c' .. id, 1, 2, 0.5}, {{'+', 'value', next(1, 9)}, {'+', 'hits', next(1, 3)}})
    end,
    function(o, next, id)
        box.space.counters:update('c' .. id, {{'-', 'value', next(1, 9)}, {'|', 'mask', next(1, 255)}})
    end,
    function(_, next, id) if next(1, 4) == 1 then box.space.counters:delete('c' .. id) end end,
    function(o, next, id) box.space.docs:replace(document(o, next, id)) end,
    function(_, next, id)
        box.space.docs:update(id, {{'=', '[2].at.x', next(0, 1000)}, {'+', '[3][1]', next(1, 5)}})
    end,
    function(o, next, id)
        box.begin()
        box.space.accounts:replace(account(o, next, id))
        box.space.docs:replace(document(o, next, id))
        box.space.counters:upsert({'c' .. id, 0, 0, 0}, {{'+', 2, 1}})
        box.commit()
    end,
}

-- o: seed, side ('A' or 'B'), rounds, width (fibers a round), low, high, step, now (what `updated` starts from).
-- Keys are low, low + step, ...: two masters of one replicaset never write one key at one time.
function M.run(o)
    local next = random.new(o.seed)
    for _ = 1, o.rounds do
        together(o.width, function()
            local id = o.low + o.step * next(0, math.floor((o.high - o.low) / o.step))
            requests[next(1, #requests)](o, next, id)
        end)
    end
end

return M
