-- Every operation of UPDATE and UPSERT: by number, by number from the end, by name, by JSON path; failing ones too.
local ffi = require('ffi')
local decimal = require('decimal')
local msgpack = require('msgpack')
local M = {}

local function update_each(space, key, list)
    for _, operations in ipairs(list) do space:update(key, operations) end
end

function M.numbers()
    local s = box.space.counters
    s:insert({'ops', 100, 0xF0, 1.5, 'abcdef'})
    update_each(s, 'ops', {
        {{'=', 2, 7}}, {{'=', 'value', 8}}, {{'=', -1, 'from the end'}}, {{'=', -2, 2}},
        {{'+', 'value', 5}}, {{'-', 'value', 1000}}, {{'+', 2, 9223372036854775807ULL}}, {{'-', 2, 1}},
        {{'+', 'hits', 0.25}}, {{'+', 'hits', decimal.new('0.125')}}, {{'-', 'hits', 3}},
        {{'&', 'mask', 0xFF}}, {{'|', 'mask', 0x100}}, {{'^', 'mask', 0xFFFF}}, {{'|', -3, 2}},
        {{':', 'text', 1, 4, 'FROM'}}, {{':', 5, -3, 2, '<e>'}}, {{':', -1, 6, 0, '~вставка~'}},
        {{'+', 'value', 1}, {'-', 'hits', 1}, {'^', 'mask', 1}, {':', 'text', 1, 1, ''}},
        {{'!', 6, 'new last'}, {'!', -1, {1, 2, 3}}, {'#', 6, 1}}, {{'#', -1, 1}}, {{'#', 5, 1}},
        {{'!', 'text', 'again'}}, {{'=', 6, 'past the format'}, {'=', 7, msgpack.NULL}},
        {},
    })
end

function M.paths()
    local s = box.space.docs
    s:insert({900000, {name = 'doc', list = {1, 2, {deep = {10, 20}}}, n = {i = 1, f = 0.5, s = 'text', ['a b'] = 4}}, {1, 2, 3}})
    update_each(s, 900000, {
        {{'=', '[2].name', 'set'}}, {{'=', '[2].new', {x = 1}}}, {{'+', '[2].n.i', 5}}, {{'-', '[2].n.f', 0.25}},
        {{'!', '[2].list[1]', 'first'}}, {{'#', '[2].list[2]', 1}}, {{'=', '[2].list[3].deep[1]', -7}},
        {{'!', '[2].n.added', 'in a map'}}, {{'#', '[2].n.i', 1}}, {{':', '[2].n.s', 2, 2, 'XX'}},
        {{'=', '[2].n["a b"]', 5}}, {{'|', '[2].n["a b"]', 3}}, {{'=', '[3][3]', 'c'}, {'+', '[3][1]', 1}, {'=', '[2].name', 'both'}},
        {{'!', '[3][4]', 4}}, {{'#', '[3][4]', 1}}, {{'=', '[2].list[4]', 'one more'}},
    })
    -- Of each of these the key is written only while the request holds: what fails leaves no row in the log.
    local fails = {
        {{'+', '[2].name', 1}}, {{'=', '[2].absent.x', 1}}, {{'=', 1, 5}}, {{'+', 9, 1}}, {{'?', 2, 1}},
        {{'#', '[2].absent', 1}}, {{':', 3, 1, 1, 'x'}}, {{'&', '[2].n.f', 1}},
    }
    for _, operations in ipairs(fails) do
        if pcall(s.update, s, 900000, operations) then error('must fail: ' .. require('json').encode(operations)) end
    end
end

function M.limits()
    local s = box.space.big
    s:insert({1, 18446744073709551615ULL, 9007199254740993ULL, -9223372036854775807LL - 1, ffi.cast('double', 1e300), decimal.new('1e-30')})
    s:insert({2, 9223372036854775808ULL, -9007199254740993LL, 18446744073709551615ULL, ffi.cast('double', -0.0), decimal.new(string.rep('9', 38))})
    s:insert({3, 0, 0.1, 0, ffi.cast('double', 5e-324), decimal.new(0)})
    s:update(1, {{'+', 'n', 1}})
    s:update(1, {{'-', 'u', 1}, {'+', 'i', 1}})
    s:update(2, {{'+', 'n', 0.5}})
    s:update(3, {{'+', 'n', 0.2}, {'+', 'x', decimal.new('1.50')}, {'-', 'i', 1}})
    if pcall(s.update, s, 2, {{'+', 'i', 1}}) then error('an integer overflow must fail') end
    if pcall(s.update, s, 2, {{'+', 'x', 1}}) then error('a decimal overflow must fail') end
end

function M.upserts()
    local s = box.space.counters
    s:upsert({'ups', 1, 1, 1}, {{'+', 2, 100}})
    s:upsert({'ups', 1, 1, 1}, {{'+', 2, 100}, {'=', 'hits', 2.5}})
    s:upsert({'ups', 1, 1, 1}, {{'+', 'text', 1}, {'+', 'value', 1}})
    s:upsert({'ups', 1, 1, 1}, {{'=', 'name', 'another key'}, {'+', 'value', 1000}})
    s:upsert({'ups', 1, 1, 1}, {{'=', 9, 'too far'}, {'|', 3, 6}, {'!', 5, 'text'}, {':', 5, 1, 2, 'TE'}})
    s:upsert({'ups', 1, 1, 1}, {{'#', 5, 1}, {'^', 'mask', 3}, {'-', -2, 1}})
    s:upsert({'ups', 1, 1, 1}, {})
    s:delete('never there')
    s:update('never there', {{'+', 2, 1}})
end

return M
