//! Memory comes from the server, so that it counts toward `maxmemory`. Outside a server, there is
//! none.

use std::alloc::{GlobalAlloc, Layout};

use redis_module::alloc::RedisAlloc;

/// The server's memory with the requested alignment. A server built for musl without jemalloc keeps
/// the size of a block in the 8 bytes before it, so its blocks are aligned to only 8 bytes; a hash
/// map, which reads 16 bytes at once, would crash there.
pub struct Aligned;

/// The alignment that every server's blocks have.
const SERVERS: usize = 8;

// SAFETY: a block is a block of the server's allocator, or begins at an aligned byte within one. It
// is freed as it was allocated: `start` finds the whole block, by the same alignment as `alloc`.
unsafe impl GlobalAlloc for Aligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= SERVERS {
            // SAFETY: the caller's promises are the same.
            return unsafe { RedisAlloc.alloc(layout) };
        }
        let room = layout.size().checked_add(layout.align());
        let Some(layout_of_room) =
            room.and_then(|size| Layout::from_size_align(size, SERVERS).ok())
        else {
            return std::ptr::null_mut();
        };
        // SAFETY: not empty, as an alignment is not 0.
        let start = unsafe { RedisAlloc.alloc(layout_of_room) };
        if start.is_null() {
            return start;
        }
        // At least 8, because both are multiples of 8: enough room to store the distance. At most
        // the alignment.
        let past = start.addr() & layout.align().wrapping_sub(1);
        let distance = layout.align().wrapping_sub(past);
        // SAFETY: `distance` is within the block, and its last 8 bytes are before the returned
        // address.
        unsafe {
            let block = start.add(distance);
            block.cast::<usize>().sub(1).write(distance);
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.align() <= SERVERS {
            // SAFETY: the caller's promises are the same.
            return unsafe { RedisAlloc.dealloc(block, layout) };
        }
        // SAFETY: `alloc` stored, before the block, the distance from the block that the server
        // returned.
        unsafe {
            let distance = block.cast::<usize>().sub(1).read();
            RedisAlloc.dealloc(block.sub(distance), layout);
        }
    }
}
