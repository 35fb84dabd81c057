-- Returns what spaces hold, by name: MessagePack of each tuple as hexadecimal text, in the order of the primary key.
local msgpack = require('msgpack')

return function(names)
    local held = {}
    for _, name in ipairs(names) do
        held[name] = {}
        for _, tuple in box.space[name]:pairs() do
            table.insert(held[name], (msgpack.encode(tuple):gsub('.', function(c)
                return string.format('%02x', c:byte())
            end)))
        end
    end
    return held
end
