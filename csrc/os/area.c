#include "os/area.h"

#include <sys/mman.h>

#include "base/err.h"

#define AREA_HUGE_BYTES (2u << 20) /* below this huge pages only waste */

int area_open(struct area *area, size_t size, const char *what)
{
    *area = (struct area){0};
    if (size == 0) {
        return 0;
    }
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return err_set(SOLO_ENOMEM, "no memory for %s: %zu MiB wanted", what,
                       (size >> 20) + (size % (1u << 20) != 0));
    }
#ifdef MADV_HUGEPAGE
    if (size >= AREA_HUGE_BYTES) {
        (void)madvise(base, size, MADV_HUGEPAGE); /* a wish: fine without */
    }
#endif
    *area = (struct area){base, size};
    return 0;
}

int area_reserve(struct area *area, size_t size, const char *what)
{
    if (area->size >= size) {
        return 0;
    }
    area_close(area);
    return area_open(area, size, what);
}

void area_populate(const struct area *area)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    if (area->base) {
        (void)madvise(area->base, area->size, MADV_POPULATE_WRITE);
    }
#else
    (void)area;
#endif
}

void area_close(struct area *area)
{
    if (area->base) {
        munmap(area->base, area->size);
    }
    *area = (struct area){0};
}
