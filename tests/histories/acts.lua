-- Does the acts of a history (tests/histories/acts.py) on this server, and says in words what each has done.
-- An act names spaces and holds dice; which field or value a die means depends on what is there when the act is done,
-- so an act keeps its sense when others of the history are left out.
local ffi = require('ffi')
local fiber = require('fiber')
local json = require('json')
local msgpack = require('msgpack')
local decimal = require('decimal')
local uuid = require('uuid')

local said  -- what the running act has said so far

-- A die: die(n) gives 0 .. n - 1, always the same ones for one seed.
local function new_die(seed)
    local state = seed % 2147483646 + 1
    return function(n)
        state = (state * 16807) % 2147483647
        return math.floor(state / 64) % n
    end
end

local function pick(list, die) return list[die(#list) + 1] end
local function double(number) return ffi.cast('double', number) end

local function shown(value)
    local ok, text = pcall(json.encode, value)
    return ok and text or tostring(value)
end

local function say(...)
    local words = {...}
    for i = 1, select('#', ...) do
        if type(words[i]) ~= 'string' then words[i] = shown(words[i]) end
    end
    table.insert(said, table.concat(words))
end

-- Values by type; also such that no column of the type holds: strings that are not UTF-8, integers beyond 64 bits with
-- a sign, years beyond 9999.
local VALUES = {}
local SCALARS = {'unsigned', 'integer', 'double', 'string', 'boolean', 'decimal'}
function VALUES.unsigned(die) return pick({0, 1, 2, 7, 255, 70000, 9007199254740993ULL, 9223372036854775817ULL}, die) end
function VALUES.integer(die)
    return pick({0, 1, -1, 5, -33, 70000, -9007199254740993LL, 9223372036854775817ULL}, die)
end
function VALUES.double(die) return double(pick({0, 1, 2.5, -0.125, 1e100, -0.0, 0 / 0, 1 / 0}, die)) end
function VALUES.number(die) return VALUES[pick({'integer', 'double', 'unsigned'}, die)](die) end
function VALUES.string(die) return pick({'', 'x', 'some', 'größe', string.rep('long', 12), 'caf\xe9', '\xff'}, die) end
function VALUES.boolean(die) return die(2) == 0 end
function VALUES.decimal(die) return decimal.new(pick({'0', '1.5', '-3.25', '1000000'}, die)) end
function VALUES.decimal64(die) return decimal.new(pick({'0', '1.5', '-3.25', '1000000.01'}, die)) end
for _, digits in ipairs({'32', '128', '256'}) do VALUES['decimal' .. digits] = VALUES.decimal64 end
function VALUES.uuid(die)
    return uuid.fromstr('00000000-0000-4000-8000-00000000000' .. die(5))
end
function VALUES.scalar(die) return VALUES[pick(SCALARS, die)](die) end
function VALUES.map(die) return setmetatable({n = die(3), s = 'x'}, {__serialize = 'map'}) end
function VALUES.array(die) return setmetatable({die(3), 'y'}, {__serialize = 'seq'}) end
function VALUES.any(die) return VALUES[pick({'scalar', 'scalar', 'map', 'array'}, die)](die) end
function VALUES.datetime(die)
    if die(6) == 0 then return require('datetime').new({year = 12000 + die(3)}) end
    return require('datetime').new({timestamp = 1700000000 + die(5)})
end

local WIDER = {decimal32 = 'decimal', decimal64 = 'decimal', decimal128 = 'decimal', decimal256 = 'decimal', unsigned = 'integer', integer = 'number', double = 'number', decimal = 'number',
    number = 'scalar', string = 'scalar', boolean = 'scalar', uuid = 'scalar', scalar = 'any', map = 'any',
    array = 'any', datetime = 'scalar'}

local function is_within(narrow, wide)
    while narrow do
        if narrow == wide then return true end
        narrow = WIDER[narrow]
    end
    return false
end

local function narrower(one, other)
    if one == nil or one == '*' then return other end
    return is_within(one, other) and one or other
end

-- The value of the k-th key in a part: the same number in every numeric type. The 7th has a double and decimals that are
-- one key, the 6th a double and a decimal that are two; others NaN, an infinite number, zeros of each sign, and integers
-- that are no double. Before 2.11 NaN is equal to decimals, and refused by name in a key of type double.
local function key_value(kind, k, die)
    if kind == 'string' then return k == 5 and 'k\xff' or 'k' .. k end
    if kind == 'boolean' then return k % 2 == 0 end
    if kind == 'double' and k == 4 and box.ctl.promote then return double(pick({4, 0 / 0}, die)) end
    if kind == 'double' and k == 5 then return double(pick({5, -1 / 0}, die)) end
    if kind == 'double' and k == 0 then return double(pick({0, -0.0}, die)) end
    if kind == 'double' then return k == 7 and 0.1 or double(k) end
    if kind == 'decimal' then return decimal.new(k == 7 and pick({'0.1', '0.100'}, die) or k) end
    if kind == 'integer' and k == 8 then return -1 end
    if kind == 'scalar' and k == 3 then return 'k3' end
    if kind == 'scalar' and k == 5 then return die(2) == 0 end
    if kind ~= 'number' and kind ~= 'scalar' then return k end
    if k == 0 then return pick({0, double(0), double(-0.0), decimal.new(0)}, die) end
    if k == 2 then return pick({9007199254740993LL, double(9007199254740994)}, die) end
    if k == 4 and box.ctl.promote then return double(pick({4, 0 / 0}, die)) end
    if k == 7 then return pick({0.1, decimal.new('0.1')}, die) end
    if k == 6 then return pick({6, 1 / 3, decimal.new('0.3333333333333334')}, die) end
    if die(3) == 0 then return double(k) end
    if die(4) == 0 then return decimal.new(k) end
    return k
end

local function formatted(space)
    local found = {}
    for i, field in ipairs(space:format()) do
        found[i] = {name = field.name or field[1], type = field.type or field[2] or 'any',
            is_nullable = field.is_nullable, scale = field.scale}
    end
    return found
end

local function primary(space)
    if space.index[0] == nil then error('no primary key') end
    return space.index[0].parts
end

-- A tuple of the k-th key that fits the space as it is now.
local function tuple_of(space, k, die)
    local format, parts, keys, least = formatted(space), primary(space), {}, 1
    for number, part in ipairs(parts) do
        local own = #parts == 1 and k or (number == 1 and k % 3 or math.floor(k / 3))
        local kind = narrower(format[part.fieldno] and format[part.fieldno].type, part.type)
        keys[part.fieldno] = key_value(kind, own, die)
        least = math.max(least, part.fieldno)
    end
    for i, field in ipairs(format) do
        if not field.is_nullable then least = math.max(least, i) end
    end
    local length = least + die(math.max(#format - least, 0) + 1)
    if die(4) == 0 then length = length + die(3) end
    if space.field_count > 0 then length = space.field_count end
    local tuple = {}
    for i = 1, length do
        local field = format[i]
        if keys[i] ~= nil then
            tuple[i] = keys[i]
        elseif field and field.is_nullable and die(3) == 0 then
            tuple[i] = box.NULL
        else
            tuple[i] = (VALUES[field and field.type or 'any'] or VALUES.any)(die)
        end
    end
    return tuple
end

local function key_of(space, tuple)
    local key = {}
    for number, part in ipairs(primary(space)) do key[number] = tuple[part.fieldno] end
    return key
end

local NUMERIC = {unsigned = true, integer = true, number = true, double = true, decimal = true}

-- Whether a vinyl space's UPSERTs may have results that do not fit it: then its definition stays as it is, since a
-- server decides by the definition that it has when the tuple is read. 2.6 stores what does not fit.
local function is_rigid(space) return space.engine == 'vinyl' and space.field_count > 0 and box.ctl.promote ~= nil end

-- One operation on the field `at`. Under vinyl none whose result might not fit but in a rigid space.
local function operation(space, at, die)
    local format, field = formatted(space), nil
    field = format[at]
    local kind = field and field.type or 'any'
    local place = (field and die(4) == 0) and field.name or at
    local dice = die(8)
    if NUMERIC[kind] and dice < 4 then
        local step = kind == 'double' and double(0.5) or 1
        return {(die(3) == 0 and kind ~= 'unsigned') and '-' or '+', place, step}
    end
    if is_rigid(space) and dice < 3 then
        return pick({{'=', place, VALUES.any(die)}, {'=', place, box.NULL}, {'#', at, 1 + die(2)},
            {'!', -1, VALUES.any(die)}, {'=', at + 1, 'x'}}, die)
    end
    if space.engine ~= 'vinyl' then
        if kind == 'string' and dice < 3 then return {':', place, 1, die(2), 'ins'} end
        if kind == 'unsigned' and dice == 4 then return {pick({'&', '|', '^'}, die), place, 5} end
        if kind == 'any' and dice < 2 then return {'+', place, 1} end
        if dice == 5 then return {'!', -1, VALUES.any(die)} end
        if dice == 6 then return {'#', at, 1} end
    end
    if field and field.is_nullable and die(3) == 0 then return {'=', place, box.NULL} end
    return {'=', place, (VALUES[kind] or VALUES.any)(die)}
end

local function operations(space, die)
    local format, is_key, found, used = formatted(space), {}, {}, {}
    for _, part in ipairs(primary(space)) do is_key[part.fieldno] = true end
    for _ = 1, 1 + die(2) do
        local at = 1 + die(math.max(#format, 3) + (#format == 0 and 1 or 0))
        if is_key[at] and die(6) > 0 then at = at + 1 end
        if space.engine == 'vinyl' and is_key[at] then at = nil end
        if at and not used[at] then table.insert(found, operation(space, at, die)) used[at] = true end
    end
    if #found == 0 then error('no operation') end
    return found
end

-- Parts of another primary key, of fields that every tuple has.
local KEY_TYPES = {'unsigned', 'string', 'integer', 'number', 'scalar', 'double', 'decimal'}
local function parts_of(space, die)
    local candidates = {}
    for i, field in ipairs(formatted(space)) do
        if not field.is_nullable and WIDER[field.type] and field.type ~= 'map' and field.type ~= 'array' then
            table.insert(candidates, {i, field.type})
            if WIDER[field.type] ~= 'any' then table.insert(candidates, {i, WIDER[field.type]}) end
        end
    end
    if #candidates == 0 then
        for i = 1, 2 do table.insert(candidates, {i, pick(KEY_TYPES, die)}) end
    end
    local first, second = pick(candidates, die), pick(candidates, die)
    if first[1] == second[1] or die(2) == 0 then return {first} end
    return {first, second}
end

local DO = {}

local function space_of(name) return box.space[name] or error('no space ' .. name) end

-- Where rows go: the space, or the next one by name where it is not there.
local function space_of_rows(name)
    if box.space[name] then return box.space[name], name end
    local names, number = {}, name:match('%d*$')
    for _, row in box.space._space:pairs(512, {iterator = 'GE'}) do
        if row[3]:match('%d*$') == number then table.insert(names, row[3]) end
    end
    table.sort(names)
    for _, other in ipairs(names) do
        if other > name then return box.space[other], other end
    end
    return space_of(names[1] or name), names[1]
end

-- space:create_index(), with what is said of it.
local function index(space, name, options)
    say('box.space["', space.name, '"]:create_index("', name, '", ', options, ')')
    space:create_index(name, options)
end

-- 2.6 marks no rows as waiting: whether they wait follows from what their space was before the transaction.
local function is_in_old_transaction() return box.is_in_txn() and not box.ctl.promote end

-- Creates a space by a direct REPLACE of its row of `_space`.
local function create_by_replace(name, options)
    local flags = setmetatable({is_sync = options.is_sync}, {__serialize = 'map'})
    if options.temporary then flags.temporary = true end
    if options.is_local then flags.group_id = 1 end
    local id = options.id or 604 + #name
    if box.space[id] or box.space[name] then error('is there') end
    local fields = options.format or setmetatable({}, {__serialize = 'seq'})
    local row = {id, 1, name, options.engine or 'memtx', options.field_count or 0, flags, fields}
    say('box.space._space:replace(', row, ')')
    box.space._space:replace(row)
    return box.space[name]
end

function DO.create(name, options, key)
    if options.is_sync and is_in_old_transaction() then options.is_sync = nil end
    if options.by_replace then
        local space = create_by_replace(name, options)
        if key then index(space, 'pk', key) end
        return
    end
    say('box.schema.space.create("', name, '", ', options, ')')
    local space = box.schema.space.create(name, options)
    if key then index(space, 'pk', key) end
end

-- Creates a space like another one: the same format and key, in the same engine.
function DO.create_like(name, other)
    local model = space_of(other)
    local parts = {}
    for i, part in ipairs(primary(model)) do parts[i] = {part.fieldno, part.type} end
    DO.create(name, {engine = model.engine, format = formatted(model)}, {parts = parts})
end

function DO.copy(source, target)
    local found = {}
    for _, tuple in space_of(source):pairs() do table.insert(found, tuple) end
    for _, tuple in ipairs(found) do
        say('box.space["', target, '"]:replace(', tuple, ')')
        space_of(target):replace(tuple)
    end
end

for _, what in ipairs({'insert', 'replace'}) do
    DO[what] = function(name, k, dice)
        local space, name = space_of_rows(name)
        local tuple = tuple_of(space, k, new_die(dice))
        say('box.space["', name, '"]:', what, '(', tuple, ')')
        space[what](space, tuple)
    end
end

function DO.update(name, k, dice)
    local space, name = space_of_rows(name)
    local die = new_die(dice)
    local key = key_of(space, tuple_of(space, k, die))
    local ops = operations(space, die)
    say('box.space["', name, '"]:update(', key, ', ', ops, ')')
    space:update(key, ops)
end

function DO.upsert(name, k, dice)
    local space, name = space_of_rows(name)
    local die = new_die(dice)
    local tuple = tuple_of(space, k, die)
    local ops = operations(space, die)
    say('box.space["', name, '"]:upsert(', tuple, ', ', ops, ')')
    space:upsert(tuple, ops)
end

-- Replaces rows of all keys by ones so large that a transaction of them takes several blocks of the log.
function DO.enlarge(name, dice)
    local space, name = space_of_rows(name)
    local die = new_die(dice)
    for k = 0, 8 do
        local tuple = tuple_of(space, k, die)
        local format = formatted(space)
        for i = #tuple + 1, #format do tuple[i] = box.NULL end
        table.insert(tuple, string.rep('z', 20000))
        say('box.space["', name, '"]:replace({', tuple[1], ', ..., string.rep("z", 20000)})')
        space:replace(tuple)
    end
end

function DO.delete(name, k, dice)
    local space, name = space_of_rows(name)
    local key = key_of(space, tuple_of(space, k, new_die(dice)))
    say('box.space["', name, '"]:delete(', key, ')')
    space:delete(key)
end

-- Deletes a range of keys, of which either end may be open or the first part of a key alone. Servers have it from 3.9 on.
function DO.delete_range(name, k, last, dice)
    local space, name = space_of_rows(name)
    if space.delete_range == nil then error('has no delete_range') end
    local die, ends = new_die(dice), {}
    for i, one in ipairs({k, last}) do
        ends[i] = key_of(space, tuple_of(space, one, die))
        if die(6) == 0 then ends[i] = {} end
        if #ends[i] > 1 and die(2) == 0 then ends[i] = {ends[i][1]} end
    end
    local ok, err = pcall(space.delete_range, space, ends[1], ends[2])
    if not ok and tostring(err):find('begin_key must be') then
        ends[1], ends[2] = ends[2], ends[1]
        ok, err = pcall(space.delete_range, space, ends[1], ends[2])
    end
    say('box.space["', name, '"]:delete_range(', ends[1], ', ', ends[2], ')')
    if not ok then error(err) end
end

function DO.truncate(name)
    say('box.space["', name, '"]:truncate()')
    space_of(name):truncate()
end

function DO.drop(name)
    if space_of(name).is_sync and is_in_old_transaction() then error('is synchronous') end
    say('box.space["', name, '"]:drop()')
    space_of(name):drop()
end

function DO.rename(name, new)
    say('box.space["', name, '"]:rename("', new, '")')
    space_of(name):rename(new)
end

local function format(space, fields)
    say('box.space["', space.name, '"]:format(', fields, ')')
    space:format(fields)
end

-- Changes of a format: each takes the fields and a die and changes them.
local CHANGE = {}
function CHANGE.add(fields, _, name, kind) table.insert(fields, {name = name, type = kind, is_nullable = true}) end
function CHANGE.nullable(fields, die) pick(fields, die).is_nullable = true end
function CHANGE.strict(fields, die) pick(fields, die).is_nullable = nil end
function CHANGE.rename(fields, die, name)
    local field = pick(fields, die)
    field.name = name == '+' and 'r' .. field.type or name
end
function CHANGE.widen(fields, die)
    local field = pick(fields, die)
    field.type = WIDER[field.type] or field.type
end
function CHANGE.retype(fields, die)
    pick(fields, die).type = pick({'unsigned', 'string', 'integer', 'number', 'scalar'}, die)
end
function CHANGE.exchange(fields, die)
    local one, other = pick(fields, die), pick(fields, die)
    one.name, other.name = other.name, one.name
end
function CHANGE.cut(fields) table.remove(fields) end
function CHANGE.forget(fields) for i = #fields, 1, -1 do fields[i] = nil end end

function DO.format(name, change, dice, field, kind)
    local space = space_of(name)
    if is_rigid(space) then error('stays as it is') end
    local fields = formatted(space)
    if #fields == 0 and change ~= 'add' then error('no format') end
    CHANGE[change](fields, new_die(dice), field, kind)
    format(space, fields)
end

-- Gives a space a format that says of its key's fields what the key says, and nothing of the others.
function DO.formalize(name)
    local space, fields, least = space_of(name), {}, 0
    if is_rigid(space) then error('stays as it is') end
    for _, part in ipairs(primary(space)) do
        fields[part.fieldno] = {name = 'k' .. part.fieldno, type = part.type}
        least = math.max(least, part.fieldno)
    end
    for i = 1, least do fields[i] = fields[i] or {name = 'o' .. i, type = 'any', is_nullable = true} end
    format(space, fields)
end

-- Decimals in a HASH index are refused.
-- 2.6 does not find the tuples of a hash index any more after a part became unsigned, or is no longer.
local function check_hash(space, parts)
    if space.index[0].type ~= 'HASH' then return end
    for _, part in ipairs(parts) do
        if part[2] == 'number' or part[2] == 'scalar' or part[2] == 'decimal' then error('decimals are refused') end
    end
    if box.ctl.promote then return end
    for i, part in ipairs(primary(space)) do
        local new = parts[i] and parts[i][2]
        if (part.type == 'unsigned') ~= (new == 'unsigned') then error('its tuples would be lost') end
    end
end

local function alter_parts(space, parts)
    primary(space)
    if is_rigid(space) then error('stays as it is') end
    check_hash(space, parts)
    say('box.space["', space.name, '"].index[0]:alter(', {parts = parts}, ')')
    space.index[0]:alter({parts = parts})
end

function DO.alter_key(name, dice) DO.alter_key_to(name, parts_of(space_of(name), new_die(dice))) end

function DO.alter_key_to(name, parts) alter_parts(space_of(name), parts) end

-- Widens the types of the key's parts, in which no tuple can be refused.
function DO.widen_key(name)
    local space, parts = space_of(name), {}
    for i, part in ipairs(primary(space)) do
        local wider = WIDER[part.type]
        parts[i] = {part.fieldno, (wider and wider ~= 'any') and wider or part.type}
    end
    alter_parts(space, parts)
end

function DO.rename_key(name, new)
    primary(space_of(name))
    say('box.space["', name, '"].index[0]:rename("', new, '")')
    space_of(name).index[0]:rename(new)
end

function DO.drop_key(name)
    primary(space_of(name))
    say('box.space["', name, '"].index[0]:drop()')
    space_of(name).index[0]:drop()
end

function DO.create_key(name, dice, parts)
    local space = space_of(name)
    if space.index[0] ~= nil then error('has a primary key') end
    index(space, 'pk', {parts = parts or parts_of(space, new_die(dice))})
end

function DO.create_secondary(name, dice)
    primary(space_of(name))
    index(space_of(name), 'sk', {unique = false, parts = {pick(parts_of(space_of(name), new_die(dice)), new_die(dice))}})
end

function DO.drop_secondary(name)
    local found = space_of(name).index.sk or error('no secondary index')
    say('box.space["', name, '"].index.sk:drop()')
    found:drop()
end

local M = {}

local function do_one(act)
    local arguments = {}
    for i = 2, #act do
        if act[i] ~= box.NULL then arguments[i - 1] = act[i] end
    end
    return pcall(DO[act[1]], unpack(arguments, 1, #act - 1))
end

local function message_of(err) return (tostring(err):gsub('^[^ ]*acts.lua:%d+: ', '')) end

-- Does the acts in one transaction but for those at places that are left out. Returns the answer of each, and nil, or
-- the place of the act after which the server did not go on with the transaction, and what it said.
local function attempt(acts, left_out, is_kept)
    local answers, last = {}, nil
    box.begin()
    for place, act in ipairs(acts) do
        if left_out[place] then
            answers[place] = left_out[place]
        else
            local savepoint = box.savepoint()
            local ok, err = do_one(act)
            if not ok then
                if not box.is_in_txn() then return answers, place, message_of(err) end
                if tostring(err):find('aborted') then
                    box.rollback()
                    return answers, last or place, message_of(err)
                end
                say('  -- refused: ', message_of(err))
                if not pcall(box.rollback_to_savepoint, savepoint) then
                    box.rollback()
                    return answers, place, message_of(err)
                end
            end
            answers[place] = ok and 'done' or message_of(err)
            last = place
        end
    end
    if not is_kept then
        box.rollback()
        return answers, nil, nil
    end
    local ok, err = pcall(box.commit)
    if ok then return answers, nil, nil end
    if box.is_in_txn() then box.rollback() end
    return answers, last, message_of(err)
end

local function wait_for(replicas, seconds)
    box.cfg {replication_synchro_quorum = replicas, replication_synchro_timeout = seconds}
end

-- Does acts in a transaction that nobody confirms: the server takes it back if a space of it is synchronous.
local function unconfirmed(acts)
    said = {}
    wait_for(2, 0.01)
    say('box.begin()')
    local answers, _, err = attempt(acts, {}, true)
    wait_for(1, 5)
    say('box.commit() -- nobody confirms it', err and ': ' .. err or '')
    for i = 1, #acts do
        if err or answers[i] == nil then answers[i] = err or 'not reached' end
    end
    return answers, said
end

-- Does acts in one transaction. One that the server does not let be in it is left out, and the rest is done again.
function M.transaction(ending, acts)
    if ending == 'unconfirmed' then return unconfirmed(acts) end
    local left_out = {}
    for _ = 1, #acts + 1 do
        said = {}
        say('box.begin()')
        local answers, culprit, err = attempt(acts, left_out, ending == 'commit')
        if culprit == nil then
            say('box.', ending, '()')
            return answers, said
        end
        if left_out[culprit] then break end
        left_out[culprit] = err
    end
    local answers = {}
    for i = 1, #acts do answers[i] = left_out[i] or 'the transaction did not end' end
    return answers, {}
end

-- Does acts in a fiber each, so that their rows may come into one block of the log.
function M.together(_, acts)
    said = {}
    local answers, fibers = {}, {}
    for i, act in ipairs(acts) do
        fibers[i] = fiber.new(function()
            local ok, err = do_one(act)
            answers[i] = ok and 'done' or message_of(err)
        end)
        fibers[i]:set_joinable(true)
    end
    for i = 1, #acts do fibers[i]:join() end
    say('-- all of these together: ', answers)
    return answers, said
end

-- Does one act; returns a list of one answer (`done`, or what refused it) and what was done, in Lua.
function M.play(act)
    said = {}
    local ok, err = do_one(act)
    if box.is_in_txn() then box.rollback() end
    if not ok then say('  -- refused: ', message_of(err)) end
    return {ok and 'done' or message_of(err)}, said
end

-- Returns {name, parts of the primary key, tuples in hex, fields of the format} of each space that belongs to the replicaset.
function M.truth()
    local found = {}
    for _, row in box.space._space:pairs() do
        local options = row[6]
        local is_own = options.group_id == 1 or options.temporary or options.view
        is_own = is_own or (options.type and options.type:find('temporary'))
        if row[1] >= 512 and not is_own then
            local space, tuples, parts = box.space[row[1]], {}, {}
            if space.index[0] ~= nil then
                for _, tuple in space:pairs() do table.insert(tuples, (string.hex(msgpack.encode(tuple)))) end
                for i, part in ipairs(space.index[0].parts) do parts[i] = {part.fieldno, part.type} end
            end
            local fields = {}
            for i, field in ipairs(formatted(space)) do fields[i] = {field.name, field.type} end
            table.insert(found, {row[3], parts, tuples, fields})
        end
    end
    return found
end

return M
