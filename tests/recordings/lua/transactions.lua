-- Transactions: over several spaces, with local and temporary rows in every place, large, rolled back, with NOPs.
local together = require('together')
local M = {}

local function atomic(f)
    box.begin()
    f()
    box.commit()
end

-- before_replace: keeps the old tuple (the log gets a NOP), changes the new one, or removes it.
function M.watch_audit()
    box.space.audit:before_replace(function(old, new)
        if new == nil then return new end
        if new.what == 'keep' then return old end
        if new.what == 'change' then return new:update({{'=', 'what', 'changed by the trigger'}}) end
        if new.what == 'remove' then return nil end
        return new
    end)
end

function M.audit(base)
    local s = box.space.audit
    s:insert({base, 'plain'})
    s:replace({base, 'keep'})
    s:insert({base + 1, 'keep'})
    s:insert({base + 2, 'change'})
    s:insert({base + 3, 'plain'})
    s:replace({base + 3, 'remove'})
    atomic(function()
        s:insert({base + 4, 'plain'})
        s:replace({base + 4, 'keep'})
        box.space.txspace:replace({base, 'beside a NOP'})
    end)
    atomic(function() s:replace({base, 'keep'}) end)
end

function M.local_rows(base)
    local tx, loc, tmp = box.space.txspace, box.space.loc, box.space.tmp
    loc:replace({base, 'alone'})
    tmp:replace({base, 'alone'})
    atomic(function() loc:replace({base + 1, 'first'}); tx:replace({base + 1, 'after a local row'}) end)
    atomic(function() tx:replace({base + 2, 'before a local row'}); loc:replace({base + 2, 'last'}) end)
    atomic(function()
        tx:replace({base + 3, 'around a local row'})
        loc:replace({base + 3, 'middle'})
        tmp:replace({base + 3, 'middle'})
        tx:replace({base + 4, 'around a local row'})
    end)
    atomic(function() loc:replace({base + 4, 'two'}); loc:delete(base) end)
    atomic(function() tmp:replace({base + 4, 'temporary alone'}) end)
end

function M.several(base)
    local accounts, tx = box.space.accounts, box.space.txspace
    atomic(function() for i = 1, 150 do tx:replace({base + 10 + i, 'large transaction, row ' .. i}) end end)
    atomic(function()
        for i = 1, 150, 3 do tx:delete(base + 10 + i) end
        tx:update(base + 12, {{'=', 'step', 'updated'}})
    end)
    box.begin()
    tx:replace({base + 400, 'never committed'})
    box.rollback()
    box.begin()
    tx:replace({base + 401, 'kept'})
    local savepoint = box.savepoint()
    tx:replace({base + 402, 'taken back'})
    box.rollback_to_savepoint(savepoint)
    accounts:upsert({base + 403, 'from a transaction', require('decimal').new(1), 1}, {{'+', 'balance', 1}})
    box.commit()
    together(20, function(i)
        atomic(function() tx:replace({base + 500 + i, 'a'}); tx:replace({base + 600 + i, 'b'}) end)
    end)
end

function M.sequences()
    for i = 1, 8 do box.space.auto:insert({box.NULL, i}) end
    box.space.auto:insert({1000, {at = 'an explicit id'}})
    box.space.auto:insert({box.NULL, 'after it'})
end

function M.vinyl(base)
    local s = box.space.vin
    for i = 1, 20 do s:replace({base + i, 'v' .. i, i}) end
    s:update(base + 1, {{'+', 'n', 100}, {'=', 2, 'updated'}})
    s:upsert({base + 2, 'x', 0}, {{'+', 3, 1000}})
    s:upsert({base + 30, 'by upsert', 1}, {{'+', 3, 1}})
    s:upsert({base + 30, 'by upsert', 1}, {{'+', 3, 1}, {'=', 2, 'twice'}})
    s:delete(base + 3)
    s:delete(base + 99)
    atomic(function() s:replace({base + 40, 'tx'}); s:update(base + 40, {{'=', 2, 'tx, updated'}}); s:delete(base + 4) end)
end

return M
