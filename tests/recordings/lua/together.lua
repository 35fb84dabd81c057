-- Runs f(1..n) in fibers of their own, so that their commits share blocks of the log (group commit).
local fiber = require('fiber')

return function(n, f)
    local fibers = {}
    for i = 1, n do
        fibers[i] = fiber.new(f, i)
        fibers[i]:set_joinable(true)
    end
    for _, one in ipairs(fibers) do
        local ok, err = one:join()
        if not ok then error(err) end
    end
end
