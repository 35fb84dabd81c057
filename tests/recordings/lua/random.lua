-- A small generator of repeatable numbers (Lehmer's, modulus 2^31 - 1), so that the workload is the same anywhere.
local M = {}

function M.new(seed)
    local state = (seed * 7919 + 1) % 2147483647
    return function(low, high)
        state = state * 48271 % 2147483647
        return low + state % (high - low + 1)
    end
end

return M
