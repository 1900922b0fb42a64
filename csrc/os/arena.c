/* arena.c - solo_arena of solo_ckpt.h: memory straight from the system, so that what is freed
 * leaves the process, with the alignment that direct reads need. */
#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "os/file.h"

#define HUGE_BYTES (2u << 20)

/* Not FILE_BLOCK_BYTES everywhere: 64 KiB on many an aarch64. There madvise would take more than it
 * was told to, up to the end of the page. */
static size_t page_bytes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return page > FILE_BLOCK_BYTES ? page : FILE_BLOCK_BYTES;
}

int solo_arena_map(uint64_t bytes, uint64_t congruent_to, struct solo_arena *out)
{
    /* Threads that read neighbouring pieces of a file then share no huge page. */
    uint64_t shift = congruent_to % (bytes >= HUGE_BYTES ? HUGE_BYTES : FILE_BLOCK_BYTES);
    /* A block more at the end, where a direct read of the file's tail may write. */
    uint64_t need = shift + bytes + FILE_BLOCK_BYTES;
    if (need < bytes || need > SIZE_MAX / 2) {
        return err_set(SOLO_ENOMEM, "an arena of %" PRIu64 " bytes is absurd", bytes);
    }
    size_t page = page_bytes();
    size_t size = ((size_t)need + page - 1) & ~(page - 1);
    bool huge = size >= HUGE_BYTES;
    size_t room = huge ? size + HUGE_BYTES : size;
    uint8_t *map = mmap(NULL, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        errno = ENOMEM;
        err_errno("mapping %zu bytes", room);
        return SOLO_ENOMEM;
    }
    if (huge) { /* the kernel gives huge pages only on their own boundaries */
        size_t skip = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
        if (skip) {
            munmap(map, skip);
        }
        munmap(map + skip + size, room - skip - size);
        map += skip;
    }
    *out = (struct solo_arena){map + shift, bytes, map, size};
    return 0;
}

int solo_arena_map_file(struct solo_file *file, uint64_t bytes, struct solo_arena *out)
{
    /* Private and without reserve: a file larger than memory can be mapped (its changed pages
     * alone need memory), and nothing is ever written back. */
    uint8_t *map =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file->fd, 0);
    if (map == MAP_FAILED) {
        return err_errno("%s: mapping %" PRIu64 " bytes", file->path, bytes);
    }
    *out = (struct solo_arena){map, bytes, map, (size_t)bytes};
    return 0;
}

void solo_arena_unmap(struct solo_arena *arena)
{
    if (arena->map) {
        munmap(arena->map, arena->map_bytes);
    }
    *arena = (struct solo_arena){0};
}

void solo_arena_drop(const struct solo_arena *arena, uint64_t offset, uint64_t bytes)
{
    uintptr_t start = (uintptr_t)arena->at + offset, end = start + bytes;
    uintptr_t page = page_bytes();
    start = (start + page - 1) & ~(page - 1);
    end &= ~(page - 1);
    if (start < end) {
        madvise((void *)start, end - start, MADV_DONTNEED);
    }
}
