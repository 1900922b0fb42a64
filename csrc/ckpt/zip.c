/* The layout is PKWARE's APPNOTE 6.3; what torch.save does with it is in docs/loading.md. */
#include "ckpt/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define END_BYTES       22u
#define END64_BYTES     56u
#define LOCATOR_BYTES   20u
#define ENTRY_BYTES     46u
#define ALIGNMENT       64u /* torch's default; others are told by the neighbours */
#define METHOD_STORED   0u
#define METHOD_DEFLATED 8u
#define FLAG_ENCRYPTED  0x0001u
#define FLAG_DESCRIPTOR 0x0008u

static uint32_t u32_at(const uint8_t *bytes)
{
    struct reader reader = reader_of(bytes, 4);
    return read_u32(&reader);
}

/* The end record that ends the file exactly; a comment may follow it inside the record. */
static const uint8_t *find_end_record(const uint8_t *tail, size_t size, uint64_t *after_out)
{
    const uint8_t *almost = NULL;
    for (size_t back = END_BYTES; back <= size && back <= END_BYTES + 65535u; back++) {
        const uint8_t *at = tail + size - back;
        if (memcmp(at, "PK\5\6", 4) != 0) {
            continue;
        }
        size_t comment = at[20] | (size_t)at[21] << 8;
        if (END_BYTES + comment == back) {
            *after_out = 0;
            return at;
        }
        if (!almost && END_BYTES + comment < back) {
            almost = at;
            *after_out = back - END_BYTES - comment;
        }
    }
    return almost;
}

static int apply_end64(const uint8_t *tail, const uint8_t *end, uint64_t tail_offset,
                       struct zip_end *out, uint64_t *end_offset, struct faults *faults)
{
    if (end - tail < (ptrdiff_t)LOCATOR_BYTES || memcmp(end - LOCATOR_BYTES, "PK\6\7", 4) != 0) {
        return 0;
    }
    struct reader locator = reader_of(end - LOCATOR_BYTES + 8, 8);
    uint64_t offset = read_u64(&locator);
    uint64_t locator_offset = tail_offset + (uint64_t)(end - tail) - LOCATOR_BYTES;
    if (offset < tail_offset || add_capped(offset, END64_BYTES) > locator_offset ||
        memcmp(tail + (offset - tail_offset), "PK\6\6", 4) != 0) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, locator_offset,
                     "the zip64 end record is not where its locator says");
    }
    struct reader reader = reader_of(tail + (offset - tail_offset) + 24, 32);
    uint64_t on_this_disk = read_u64(&reader);
    struct zip_end wide;
    wide.count = read_u64(&reader);
    wide.directory_bytes = read_u64(&reader);
    wide.directory_offset = read_u64(&reader);
    if (on_this_disk != wide.count || (out->count != 0xffff && out->count != wide.count) ||
        (out->directory_bytes != UINT32_MAX && out->directory_bytes != wide.directory_bytes) ||
        (out->directory_offset != UINT32_MAX && out->directory_offset != wide.directory_offset)) {
        return FAULT(faults, SOLO_CKPT_MISMATCH, offset,
                     "the two end records of the zip contradict each other");
    }
    *out = wide;
    *end_offset = offset;
    return 0;
}

int zip_find_end(const uint8_t *tail, size_t size, uint64_t file_size, struct zip_end *out,
                 struct faults *faults)
{
    uint64_t after = 0;
    const uint8_t *end = size >= END_BYTES ? find_end_record(tail, size, &after) : NULL;
    if (!end) {
        return FAULT(faults, SOLO_CKPT_TRUNCATED, file_size,
                     "the zip archive has no end: the file was cut at %" PRIu64 " bytes",
                     file_size);
    }
    uint64_t tail_offset = file_size - size;
    uint64_t end_offset = tail_offset + (uint64_t)(end - tail);
    if (after) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, file_size - after,
                     "%" PRIu64 " bytes follow the end of the zip archive", after);
    }
    struct reader reader = reader_of(end + 10, 10);
    out->count = read_u16(&reader);
    out->directory_bytes = read_u32(&reader);
    out->directory_offset = read_u32(&reader);
    TRY(apply_end64(tail, end, tail_offset, out, &end_offset, faults));
    if (add_capped(out->directory_offset, out->directory_bytes) != end_offset) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, end_offset,
                     "the zip directory (%" PRIu64 " bytes at %" PRIu64
                     ") does not end where the end record begins (%" PRIu64 ")",
                     out->directory_bytes, out->directory_offset, end_offset);
    }
    if (out->count > ZIP_RECORDS_MAX || out->count > out->directory_bytes / ENTRY_BYTES) {
        return FAULT(faults, SOLO_CKPT_LIMIT, end_offset,
                     "%" PRIu64 " records do not fit a zip directory of %" PRIu64 " bytes",
                     out->count, out->directory_bytes);
    }
    return 0;
}

/* Fields of 32 bits that are all ones have their value in the zip64 extra field, in order. */
static bool apply_extra64(const uint8_t *extra, size_t size, struct solo_ckpt_record *record)
{
    struct reader reader = reader_of(extra, size);
    while (reader.ok && reader.at < reader.end) {
        uint16_t id = read_u16(&reader);
        uint16_t length = read_u16(&reader);
        const uint8_t *body = read_bytes(&reader, length);
        if (!body || id != 1) {
            continue;
        }
        struct reader field = reader_of(body, length);
        if (record->bytes == UINT32_MAX) {
            record->bytes = read_u64(&field);
        }
        if (record->packed_bytes == UINT32_MAX) {
            record->packed_bytes = read_u64(&field);
        }
        if (record->header_offset == UINT32_MAX) {
            record->header_offset = read_u64(&field);
        }
        return field.ok;
    }
    return reader.ok;
}

struct entry {
    struct solo_ckpt_record record;
    struct zip_place place;
};

static int check_entry(const struct entry *entry, const struct zip_end *end, uint64_t at,
                       struct faults *faults)
{
    const struct solo_ckpt_record *record = &entry->record;
    const char *name = faults_name(entry->place.full_name, entry->place.full_bytes);
    if (entry->place.flags & FLAG_ENCRYPTED) {
        return FAULT(faults, SOLO_CKPT_UNSUPPORTED, at, "record %s is encrypted", name);
    }
    if (record->method != METHOD_STORED && record->method != METHOD_DEFLATED) {
        return FAULT(faults, SOLO_CKPT_UNSUPPORTED, at, "record %s is packed by method %u", name,
                     record->method);
    }
    if (record->method == METHOD_STORED && record->bytes != record->packed_bytes) {
        return FAULT(faults, SOLO_CKPT_MISMATCH, at,
                     "record %s is stored but has two sizes, %" PRIu64 " and %" PRIu64, name,
                     record->bytes, record->packed_bytes);
    }
    uint64_t least =
        add_capped(record->header_offset, ZIP_LOCAL_BYTES + (uint64_t)entry->place.full_bytes);
    if (add_capped(least, record->packed_bytes) > end->directory_offset) {
        return FAULT(faults, SOLO_CKPT_TRUNCATED, at,
                     "record %s (%" PRIu64 " bytes at %" PRIu64 ") reaches beyond its archive",
                     name, record->packed_bytes, record->header_offset);
    }
    if (!entry->place.full_bytes || memchr(entry->place.full_name, 0, entry->place.full_bytes)) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, at, "a record has no name, or a zero byte in it");
    }
    return 0;
}

/* Reads one directory entry; a broken one ends the parse, an odd one is a fault. */
static int read_entry(struct reader *reader, const struct zip_end *end, uint64_t at,
                      struct entry *out, struct faults *faults)
{
    const uint8_t *fixed = read_bytes(reader, ENTRY_BYTES);
    if (!fixed || memcmp(fixed, "PK\1\2", 4) != 0) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, at, "the zip directory is damaged");
    }
    struct reader fields = reader_of(fixed + 8, ENTRY_BYTES - 8);
    memset(out, 0, sizeof *out);
    out->place.flags = read_u16(&fields);
    out->record.method = read_u16(&fields);
    read_u32(&fields); /* time and date */
    out->record.crc = read_u32(&fields);
    out->record.packed_bytes = read_u32(&fields);
    out->record.bytes = read_u32(&fields);
    size_t name_bytes = read_u16(&fields), extra_bytes = read_u16(&fields);
    size_t comment_bytes = read_u16(&fields);
    read_u64(&fields); /* disk and attributes: symbolic links are of no interest here */
    out->record.header_offset = u32_at(fixed + 42);
    out->record.offset = SOLO_CKPT_NONE;
    const uint8_t *name = read_bytes(reader, name_bytes);
    const uint8_t *extra = read_bytes(reader, extra_bytes);
    if (!name || !extra || !read_bytes(reader, comment_bytes) ||
        !apply_extra64(extra, extra_bytes, &out->record)) {
        return FAULT(faults, SOLO_CKPT_DAMAGED, at, "the zip directory is damaged");
    }
    out->place.full_name = (const char *)name;
    out->place.full_bytes = (uint32_t)name_bytes;
    check_entry(out, end, at, faults);
    return 0;
}

static int by_header(const void *a, const void *b)
{
    uint64_t left = ((const struct entry *)a)->record.header_offset;
    uint64_t right = ((const struct entry *)b)->record.header_offset;
    return (left > right) - (left < right);
}

/* Where the data would be if it ended, with one of the known descriptors, where the next header
 * begins: aligned as torch pads it, or right behind a name without extra field. NONE: neither. */
static uint64_t guess(const struct solo_ckpt_record *record, const struct zip_place *place,
                      bool aligned)
{
    static const unsigned descriptors[] = {16, 24}; /* of 32 and 64 bits, with signature */
    uint64_t least = record->header_offset + ZIP_LOCAL_BYTES + place->full_bytes;
    /* torch leaves the descriptor out for empty records alone */
    unsigned count = place->flags & FLAG_DESCRIPTOR ? 2 : 0;
    for (unsigned i = 0; i <= count; i++) {
        uint64_t descriptor = i < count ? descriptors[i] : 0;
        uint64_t need = add_capped(add_capped(least, record->packed_bytes), descriptor);
        if ((count && record->bytes && i == count) || place->end < need) {
            continue;
        }
        uint64_t offset = place->end - descriptor - record->packed_bytes;
        if (aligned ? offset % ALIGNMENT == 0 && offset - least <= UINT16_MAX : offset == least) {
            return offset;
        }
    }
    return SOLO_CKPT_NONE;
}

/* The data's places follow from the next headers: the local extra fields are the only unknown.
 * One rule must fit all records, else the local headers are read. Each is compared with its
 * header before its data is used anyway, so that a wrong guess is never wrong data. */
static void place_data(struct zip *zip)
{
    for (int aligned = 1; aligned >= 0; aligned--) {
        size_t placed = 0;
        for (; placed < zip->count; placed++) {
            struct solo_ckpt_record *record = &zip->records[placed];
            record->offset = guess(record, &zip->places[placed], aligned);
            if (record->offset == SOLO_CKPT_NONE) {
                break;
            }
        }
        if (placed == zip->count) {
            return;
        }
    }
    for (size_t i = 0; i < zip->count; i++) {
        zip->records[i].offset = SOLO_CKPT_NONE;
    }
}

static void check_overlap(const struct zip *zip, size_t index, struct faults *faults)
{
    const struct solo_ckpt_record *record = &zip->records[index];
    const struct zip_place *place = &zip->places[index];
    uint64_t least =
        add_capped(record->header_offset, ZIP_LOCAL_BYTES + (uint64_t)place->full_bytes);
    if (add_capped(least, record->packed_bytes) > place->end) {
        FAULT(faults, SOLO_CKPT_OVERLAP, record->header_offset,
              "records %s and the one after it claim the same bytes at %" PRIu64,
              faults_name(place->full_name, place->full_bytes), place->end);
    }
}

static size_t top_of(const char *name, size_t size)
{
    const char *slash = memchr(name, '/', size);
    return slash ? (size_t)(slash - name) : 0;
}

/* Every record is under one top directory, which torch names after the file. */
static void strip_top(struct zip *zip, struct faults *faults)
{
    zip->top = zip->places[0].full_name;
    zip->top_bytes = top_of(zip->top, zip->places[0].full_bytes);
    for (size_t i = 0; i < zip->count; i++) {
        const struct zip_place *place = &zip->places[i];
        bool under = zip->top_bytes && place->full_bytes > zip->top_bytes &&
                     memcmp(place->full_name, zip->top, zip->top_bytes) == 0 &&
                     place->full_name[zip->top_bytes] == '/';
        size_t skip = under ? zip->top_bytes + 1 : 0;
        zip->records[i].name = place->full_name + skip;
        zip->records[i].name_bytes = place->full_bytes - (uint32_t)skip;
        if (!under) {
            FAULT(faults, SOLO_CKPT_UNSUPPORTED, zip->records[i].header_offset,
                  "record %s is not under the archive's top directory \"%s\": not a file of "
                  "torch.save",
                  faults_name(place->full_name, place->full_bytes),
                  faults_name(zip->top, zip->top_bytes));
            return;
        }
    }
}

static char folded(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* FNV-1a. Who makes names of one mark makes sorting slower by a comparison, and no more. */
static struct zip_name name_of(const struct solo_ckpt_record *record)
{
    uint64_t mark = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < record->name_bytes; i++) {
        mark = (mark ^ (uint8_t)folded(record->name[i])) * 0x100000001b3u;
    }
    return (struct zip_name){mark, record};
}

static int by_folded_name(const void *a, const void *b)
{
    const struct zip_name *one = a, *other = b;
    if (one->mark != other->mark) {
        return one->mark < other->mark ? -1 : 1;
    }
    const struct solo_ckpt_record *left = one->record, *right = other->record;
    uint32_t least = left->name_bytes < right->name_bytes ? left->name_bytes : right->name_bytes;
    for (uint32_t i = 0; i < least; i++) {
        int difference = folded(left->name[i]) - folded(right->name[i]);
        if (difference) {
            return difference;
        }
    }
    return (left->name_bytes > right->name_bytes) - (left->name_bytes < right->name_bytes);
}

/* One name twice: readers disagree on which of the two counts. */
static void check_names(const struct zip *zip, struct faults *faults)
{
    struct zip_name *sorted = zip->by_name;
    for (size_t i = 0; i < zip->count; i++) {
        sorted[i] = name_of(&zip->records[i]);
    }
    qsort(sorted, zip->count, sizeof *sorted, by_folded_name);
    for (size_t i = 1; i < zip->count; i++) {
        if (by_folded_name(&sorted[i - 1], &sorted[i]) == 0) {
            const struct solo_ckpt_record *twice = sorted[i].record;
            FAULT(faults, SOLO_CKPT_DUPLICATE, twice->header_offset,
                  "record %s is there twice (names that differ in case alone count as one)",
                  faults_name(twice->name, twice->name_bytes));
        }
    }
}

static void fill(struct zip *zip, struct entry *entries, const struct zip_end *end,
                 struct faults *faults)
{
    qsort(entries, zip->count, sizeof *entries, by_header);
    for (size_t i = 0; i < zip->count; i++) {
        zip->records[i] = entries[i].record;
        zip->places[i] = entries[i].place;
        zip->places[i].end =
            i + 1 < zip->count ? entries[i + 1].record.header_offset : end->directory_offset;
        check_overlap(zip, i, faults);
    }
    if (zip->count == 0) {
        FAULT(faults, SOLO_CKPT_UNSUPPORTED, end->directory_offset, "the zip archive is empty");
        return;
    }
    if (!faults->count) {
        place_data(zip);
    }
    strip_top(zip, faults);
    check_names(zip, faults);
}

int zip_parse(const uint8_t *bytes, size_t size, const struct zip_end *end, struct zip *out,
              struct faults *faults)
{
    size_t room = (size_t)end->count + 1;
    struct entry *entries = malloc(room * sizeof *entries);
    *out = (struct zip){.records = calloc(room, sizeof *out->records),
                        .places = calloc(room, sizeof *out->places),
                        .by_name = calloc(room, sizeof(*out->by_name))};
    if (!entries || !out->records || !out->places || !out->by_name) {
        free(entries);
        zip_free(out);
        return err_set(SOLO_ENOMEM, "no memory for %" PRIu64 " zip records", end->count);
    }
    struct reader reader = reader_of(bytes, size);
    int rc = 0;
    while (rc == 0 && out->count < end->count) {
        uint64_t at = end->directory_offset + (uint64_t)(reader.at - bytes);
        rc = read_entry(&reader, end, at, &entries[out->count], faults);
        out->count += rc == 0;
    }
    if (rc == 0 && reader.at != reader.end) {
        FAULT(faults, SOLO_CKPT_MISMATCH, end->directory_offset + (uint64_t)(reader.at - bytes),
              "the zip directory holds more than the %" PRIu64 " records it states", end->count);
    }
    fill(out, entries, end, faults);
    free(entries);
    return 0;
}

void zip_free(struct zip *zip)
{
    free(zip->records);
    free(zip->places);
    free(zip->by_name);
    *zip = (struct zip){0};
}

const struct solo_ckpt_record *zip_find(const struct zip *zip, const char *name, size_t size)
{
    const struct solo_ckpt_record wanted = {.name = name, .name_bytes = (uint32_t)size};
    const struct zip_name key = name_of(&wanted);
    const struct zip_name *found =
        bsearch(&key, zip->by_name, zip->count, sizeof(*zip->by_name), by_folded_name);
    return found && memcmp(found->record->name, name, size) == 0 ? found->record : NULL;
}

/* Sizes of a local header may be left to the descriptor (0) or to zip64 (all ones). */
static bool size_agrees(uint32_t local, uint64_t central, uint16_t flags)
{
    return local == central || local == UINT32_MAX || (local == 0 && flags & FLAG_DESCRIPTOR);
}

static int local_read(const struct zip *zip, size_t index, const uint8_t *local, size_t size,
                      uint64_t *offset_out)
{
    const struct solo_ckpt_record *record = &zip->records[index];
    const struct zip_place *place = &zip->places[index];
    if (size < ZIP_LOCAL_BYTES + (size_t)place->full_bytes || memcmp(local, "PK\3\4", 4) != 0) {
        return err_set(SOLO_ECORRUPT, "there is no record at %" PRIu64 " where %s should be",
                       record->header_offset, faults_name(record->name, record->name_bytes));
    }
    struct reader fields = reader_of(local + 6, ZIP_LOCAL_BYTES - 6);
    uint16_t flags = read_u16(&fields), method = read_u16(&fields);
    read_u32(&fields);
    read_u32(&fields); /* crc: in the descriptor */
    uint32_t packed = read_u32(&fields), bytes = read_u32(&fields);
    uint16_t name_bytes = read_u16(&fields), extra_bytes = read_u16(&fields);
    if (name_bytes != place->full_bytes ||
        memcmp(local + ZIP_LOCAL_BYTES, place->full_name, name_bytes) != 0 ||
        method != record->method || flags & FLAG_ENCRYPTED ||
        !size_agrees(packed, record->packed_bytes, flags) ||
        !size_agrees(bytes, record->bytes, flags)) {
        return err_set(SOLO_ECORRUPT,
                       "the header of record %s at %" PRIu64 " contradicts the zip directory",
                       faults_name(record->name, record->name_bytes), record->header_offset);
    }
    *offset_out = record->header_offset + ZIP_LOCAL_BYTES + name_bytes + extra_bytes;
    return 0;
}

int zip_local_check(const struct zip *zip, size_t index, const uint8_t *local, size_t size)
{
    uint64_t offset = 0;
    TRY(local_read(zip, index, local, size, &offset));
    if (offset != zip->records[index].offset) {
        return err_set(SOLO_ECORRUPT,
                       "the data of record %s begins at %" PRIu64 ", not at %" PRIu64,
                       faults_name(zip->records[index].name, zip->records[index].name_bytes),
                       offset, zip->records[index].offset);
    }
    return 0;
}

int zip_local_apply(struct zip *zip, size_t index, const uint8_t *local, size_t size,
                    struct faults *faults)
{
    struct solo_ckpt_record *record = &zip->records[index];
    uint64_t offset = 0;
    int rc = local_read(zip, index, local, size, &offset);
    if (rc < 0) {
        return faults_take(faults, SOLO_CKPT_MISMATCH, record->header_offset, rc);
    }
    if (add_capped(offset, record->packed_bytes) > zip->places[index].end) {
        return FAULT(faults, SOLO_CKPT_OVERLAP, record->header_offset,
                     "record %s reaches into the one after it",
                     faults_name(record->name, record->name_bytes));
    }
    record->offset = offset;
    return 0;
}
