"""The Lua code by which a server computes the checksum of a page, so that equal pages need not be sent.

It only reads; the function is kept in the session's storage, compiled once, and disappears with the connection. The
checksum of a tuple is XXH64 of its MessagePack with seed 42, as in `udfs.keys.kernels.row_hash`
(<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>); that of a page is their sum modulo 2^64, so it does
not depend on the order of the tuples. A memtx page is a consistent snapshot, since the code never yields.
"""

from __future__ import annotations

PREPARE = """
local ffi, bit, buffer, msgpack = require('ffi'), require('bit'), require('buffer'), require('msgpack')
local rol, bxor, rshift = bit.rol, bit.bxor, bit.rshift
local u64, u32 = ffi.typeof('const uint64_t *'), ffi.typeof('const uint32_t *')
local P1, P2, P3 = 11400714785074694791ULL, 14029467366897019727ULL, 1609587929392839161ULL
local P4, P5 = 9650029242287828579ULL, 2870177450012600261ULL

local function round(value, word) return rol(value + word * P2, 31) * P1 end

local function xxh64(p, size)
    local seed, at, h = 42ULL, 0, nil
    if size >= 32 then
        local a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at <= size - 32 do
            local w = ffi.cast(u64, p + at)
            a, b, c, d = round(a, w[0]), round(b, w[1]), round(c, w[2]), round(d, w[3])
            at = at + 32
        end
        h = rol(a, 1) + rol(b, 7) + rol(c, 12) + rol(d, 18)
        h = bxor(h, rol(a * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(b * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(c * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(d * P2, 31) * P1) * P1 + P4
    else
        h = seed + P5
    end
    h = h + size
    while at <= size - 8 do
        h = rol(bxor(h, round(0ULL, ffi.cast(u64, p + at)[0])), 27) * P1 + P4
        at = at + 8
    end
    if at <= size - 4 then
        h = rol(bxor(h, ffi.cast(u32, p + at)[0] * P1), 23) * P2 + P3
        at = at + 4
    end
    while at < size do
        h = rol(bxor(h, p[at] * P5), 11) * P1
        at = at + 1
    end
    h = bxor(h, rshift(h, 33)) * P2
    h = bxor(h, rshift(h, 29)) * P3
    return bxor(h, rshift(h, 32))
end

box.session.storage.page_checksum = function(space_id, after, limit)
    local index = box.space[space_id].index[0]
    local page = index:select(after, {iterator = #after == 0 and 'ALL' or 'GT', limit = limit})
    local out, total, bytes = buffer.ibuf(), 0ULL, 0
    for _, tuple in ipairs(page) do
        out:reset()
        local size = tonumber(msgpack.encode(tuple, out))
        total = total + xxh64(ffi.cast('const uint8_t *', out.rpos), size)
        bytes = bytes + size
    end
    out:recycle()
    return #page, total, bytes, page[#page]
end
"""
"""Defines the function."""

CHECKSUM = "return box.session.storage.page_checksum(...)"
"""Takes a space's id, the key that the page begins behind (an empty array for the first page), and how many tuples it
may have; returns how many there are, their checksum, their size in bytes, and the last of them."""
