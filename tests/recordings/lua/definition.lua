-- DDL on the way: what changes a space while rows are written to it.
local M = {}

function M.fill(base)
    for i = 1, 6 do
        for _, name in ipairs({'to_drop', 'to_trunc', 'again', 'renamed', 'old_name'}) do
            box.space[name]:replace({base + i, name .. ' ' .. i})
        end
        box.space.widened:replace({base + i, i})
        box.space.rekeyed:replace({base + i, i % 3, 'by id'})
    end
end

local function fresh()
    local s = box.schema.space.create('fresh')
    s:format({{'id', 'string'}, {name = 'v', type = 'any', is_nullable = true}})
    s:create_index('primary', {parts = {1, 'string'}})
    for i = 1, 10 do s:insert({'f' .. i, {i}}) end
end

local function again()
    box.space.again:drop()
    local s = box.schema.space.create('again')
    s:format({{'code', 'string'}, {'n', 'integer'}, {name = 'ok', type = 'boolean', is_nullable = true}})
    s:create_index('primary', {parts = {1, 'string'}})
    s:insert({'recreated', -1, true})
    s:insert({'7', 7})
end

-- Rows of a space in the transaction that makes it, and of two spaces of one name in another.
local function in_a_transaction()
    box.begin()
    local s = box.schema.space.create('made_in_a_transaction', {format = {{'id', 'unsigned'}, {'v', 'string'}}})
    s:create_index('primary', {parts = {1, 'unsigned'}})
    s:insert({1, 'in the transaction that made the space'})
    box.commit()
    s:insert({2, 'after it'})
end

local function swap_in_a_transaction()
    box.begin()
    box.space.made_in_a_transaction:drop()
    local s = box.schema.space.create('made_in_a_transaction', {format = {{'code', 'string'}}})
    s:create_index('primary', {parts = {1, 'string'}})
    s:insert({'of the second space'})
    box.commit()
end

-- The primary key changes from (id) to (id, part): a key written before has another shape afterwards.
local function rekey()
    box.space.rekeyed.index.primary:alter({parts = {1, 'unsigned', 2, 'unsigned'}})
    box.space.rekeyed:insert({1, 77, 'by id and part'})
    box.space.rekeyed:replace({1, 78, 'by id and part'})
    box.space.rekeyed:delete({1, 77})
    box.space.rekeyed:update({1, 78}, {{'=', 'v', 'updated by id and part'}})
end

local function indexes()
    local s = box.space.accounts
    s:create_index('by_balance', {parts = {3, 'decimal'}, unique = false})
    s.index.by_balance:rename('balance_order')
    s.index.by_name:drop()
    s:create_index('short_lived', {parts = {4, 'number'}, unique = false})
    s.index.short_lived:drop()
end

function M.change()
    local with_email = box.space.accounts:format()
    table.insert(with_email, {name = 'email', type = 'string', is_nullable = true})
    box.space.accounts:format(with_email)
    box.space.renamed:format({{'id', 'unsigned'}, {'value', 'string'}})
    box.space.renamed:update(box.space.renamed:pairs():nth(1)[1], {{'=', 'value', 'by the new name'}})
    box.space.widened:format({{'id', 'unsigned'}, {'v', 'number'}})
    box.space.widened:replace({1000, -0.5})
    box.space.old_name:rename('new_name')
    box.space.new_name:replace({1000, 'under the new name'})
    box.space.to_drop:drop()
    box.space.to_trunc:truncate()
    box.space.to_trunc:replace({1000, 'after the truncate'})
    fresh()
    again()
    rekey()
    indexes()
    in_a_transaction()
end

-- Later still: truncated and written in one round again, dropped and recreated as before.
function M.again()
    box.space.to_trunc:replace({1001, 'gone'})
    box.space.to_trunc:truncate()
    box.space.to_trunc:replace({1002, 'after the second truncate'})
    again()
    swap_in_a_transaction()
    box.space.accounts:replace({100001, 'with an address', require('decimal').new('10.00'), 2, 'who@example.org'})
    box.space.accounts:replace({100002, 'without', require('decimal').new('-10.5'), 2, box.NULL})
    box.space.fresh:replace({'nothing else'})
    box.space.fresh:delete('f3')
end

return M
