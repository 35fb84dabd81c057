-- Synchronous transactions, confirmed and rolled back, with asynchronous ones queued behind them.
local fiber = require('fiber')
local M = {}
local REACHABLE, UNREACHABLE = 2, 3
local ROWS = 7

local function start(f)
    local one = fiber.new(f)
    one:set_joinable(true)
    fiber.yield()
    return one
end

local function results(fibers)
    local out = {}
    for i, one in ipairs(fibers) do out[i] = one:join() end
    return out
end

function M.quorum(n, timeout)
    box.cfg({replication_synchro_quorum = n, replication_synchro_timeout = timeout})
end

-- Starts transactions that wait for a quorum; `finish` gives, for each, whether it was committed.
local function queue(base, memo)
    local ledger, accounts, decimal = box.space.ledger, box.space.accounts, require('decimal')
    return {
        start(function() ledger:insert({base, 1, memo}) end),
        start(function()
            box.begin()
            ledger:insert({base + 1, 2, memo})
            box.space.txspace:replace({base, 'beside the ledger: ' .. memo})
            ledger:insert({base + 2, 3, memo})
            box.commit()
        end),
        start(function() accounts:replace({base, 'queued behind the ledger: ' .. memo, decimal.new(base), 1}) end),
        start(function() ledger:upsert({base, 0, memo}, {{'+', 'sum', 10}}) end),
        start(function() ledger:delete(base + 2) end),
    }
end

-- Queues them all under a quorum that cannot be reached, then, where they are to be committed, lowers it.
-- (A quorum reached while rows are still being written can leave an asynchronous transaction of 2.6.0 waiting for ever.)
function M.write(base, memo, committed)
    M.quorum(UNREACHABLE, committed and 30 or 0.2)
    local last = box.info.lsn + ROWS
    local fibers = queue(base, memo)
    while committed and box.info.lsn < last do fiber.sleep(0.001) end
    if committed then M.quorum(REACHABLE, 30) end
    return results(fibers)
end

-- Leaves the transactions waiting; another member settles them.
function M.leave(base, memo) M.left = queue(base, memo) end

function M.left_results() return results(M.left) end

return M
