/* shards.c - the index of a sharded checkpoint: which tensor is in which file. A file's name
 * stays inside the index's own directory: no absolute path, no "..", no URL. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/faults.h"
#include "ckpt/grow.h"
#include "ckpt/scan.h"
#include "ckpt/slots.h"

#define FILES_MAX 100000u
#define NAMES_MAX 2000000u

struct file_name {
    size_t text_at;
    uint32_t bytes;
};

struct solo_ckpt_shards {
    struct faults faults;
    struct scan json;
    struct grown texts;   /* char */
    struct grown names;   /* struct solo_ckpt_shard_name; text is an index until the end */
    struct grown files;   /* struct file_name */
    struct slots by_name; /* files */
    uint64_t total;
};

static int broken(struct solo_ckpt_shards *shards)
{
    return FAULT(&shards->faults, SOLO_CKPT_DAMAGED,
                 (uint64_t)(shards->json.at - shards->json.start), "the index is damaged: %s",
                 shards->json.what);
}

static int take_text(struct solo_ckpt_shards *shards, struct scan_text text, size_t *at_out,
                     uint32_t *bytes_out)
{
    TRY(grow(&shards->texts, text.size + 1, 1));
    char *room = (char *)shards->texts.items + shards->texts.count;
    size_t size = scan_decode(text, room);
    if (size == SIZE_MAX || memchr(room, 0, size)) {
        scan_fail(&shards->json, "a name has a broken escape or a zero byte");
        return broken(shards);
    }
    *at_out = shards->texts.count;
    *bytes_out = (uint32_t)size;
    shards->texts.count += size;
    return 0;
}

static bool is_inside(const char *name, size_t size)
{
    if (!size || name[0] == '/' || name[0] == '\\' || memchr(name, ':', size)) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        bool at_start = i == 0 || name[i - 1] == '/' || name[i - 1] == '\\';
        bool ends = i + 2 == size || (i + 2 < size && (name[i + 2] == '/' || name[i + 2] == '\\'));
        if (at_start && ends && name[i] == '.' && name[i + 1] == '.') {
            return false;
        }
    }
    return true;
}

static bool is_name_of(const void *table, uint32_t row, const char *name, size_t size)
{
    const struct solo_ckpt_shards *shards = table;
    const struct file_name *file = (const struct file_name *)shards->files.items + row;
    return file->bytes == size &&
           memcmp((const char *)shards->texts.items + file->text_at, name, size) == 0;
}

static int add_file(struct solo_ckpt_shards *shards, size_t text_at, uint32_t bytes, uint32_t *out)
{
    const char *text = (char *)shards->texts.items + text_at;
    if (!is_inside(text, bytes)) {
        return FAULT(&shards->faults, SOLO_CKPT_UNSAFE, 0,
                     "the index names the file \"%s\", which is outside its own directory",
                     faults_name(text, bytes));
    }
    if (shards->files.count >= FILES_MAX) {
        return FAULT(&shards->faults, SOLO_CKPT_LIMIT, 0, "more than %u files", FILES_MAX);
    }
    *out = (uint32_t)shards->files.count;
    TRY(slots_add(&shards->by_name, *out, text, bytes));
    TRY(grow(&shards->files, 1, sizeof(struct file_name)));
    ((struct file_name *)shards->files.items)[shards->files.count++] =
        (struct file_name){text_at, bytes};
    return 0;
}

/* The file's row; a name seen before gives its text back. */
static int file_row(struct solo_ckpt_shards *shards, size_t text_at, uint32_t bytes, uint32_t *out)
{
    const char *text = (char *)shards->texts.items + text_at;
    uint32_t row = slots_find(&shards->by_name, is_name_of, shards, text, bytes);
    if (row == SLOTS_CROWDED) {
        return FAULT(&shards->faults, SOLO_CKPT_LIMIT, 0,
                     "the files' names are made to be slow to look up");
    }
    if (row == SLOTS_NONE) {
        return add_file(shards, text_at, bytes, out);
    }
    shards->texts.count = text_at;
    *out = row;
    return 0;
}

static int take_map(struct solo_ckpt_shards *shards)
{
    struct scan_text key, value;
    bool first = true;
    if (!scan_enter(&shards->json, '{')) {
        return broken(shards);
    }
    while (scan_key(&shards->json, &first, &key) && scan_string(&shards->json, &value)) {
        struct solo_ckpt_shard_name name = {0};
        size_t name_at = 0, file_at = 0;
        uint32_t file_bytes = 0;
        if (shards->names.count >= NAMES_MAX) {
            return FAULT(&shards->faults, SOLO_CKPT_LIMIT, 0, "more than %u names", NAMES_MAX);
        }
        TRY(take_text(shards, key, &name_at, &name.bytes));
        TRY(take_text(shards, value, &file_at, &file_bytes));
        TRY(file_row(shards, file_at, file_bytes, &name.file));
        name.text = (void *)(uintptr_t)name_at;
        TRY(grow(&shards->names, 1, sizeof name));
        ((struct solo_ckpt_shard_name *)shards->names.items)[shards->names.count++] = name;
    }
    return shards->json.what ? broken(shards) : 0;
}

static int take_metadata(struct solo_ckpt_shards *shards)
{
    struct scan_text key;
    bool first = true;
    if (!scan_enter(&shards->json, '{')) {
        return broken(shards);
    }
    while (scan_key(&shards->json, &first, &key)) {
        char next = scan_peek(&shards->json);
        bool digits = next >= '0' && next <= '9';
        struct scan before = shards->json;
        if (scan_is(key, "total_size") && digits && scan_uint(&shards->json, &shards->total)) {
            continue;
        }
        shards->json = before; /* some writers give a float: advisory, like all of this */
        if (!scan_skip(&shards->json)) {
            break;
        }
    }
    return shards->json.what ? broken(shards) : 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct solo_ckpt_shard_name *left = *(const struct solo_ckpt_shard_name *const *)a;
    const struct solo_ckpt_shard_name *right = *(const struct solo_ckpt_shard_name *const *)b;
    uint32_t least = left->bytes < right->bytes ? left->bytes : right->bytes;
    int difference = memcmp(left->text, right->text, least);
    return difference ? difference : (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

static int finish(struct solo_ckpt_shards *shards)
{
    size_t count = shards->names.count;
    struct solo_ckpt_shard_name *names = shards->names.items;
    const struct solo_ckpt_shard_name **sorted = malloc((count + 1) * sizeof(*sorted));
    if (!sorted) {
        return err_set(SOLO_ENOMEM, "no memory for %zu names", count);
    }
    for (size_t i = 0; i < count; i++) {
        names[i].text = (char *)shards->texts.items + (uintptr_t)names[i].text;
        sorted[i] = &names[i];
    }
    qsort(sorted, count, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (compare_names(&sorted[i - 1], &sorted[i]) == 0) {
            FAULT(&shards->faults, SOLO_CKPT_DUPLICATE, 0, "the index names %s twice",
                  faults_name(sorted[i]->text, sorted[i]->bytes));
        }
    }
    free(sorted);
    return 0;
}

static int parse(struct solo_ckpt_shards *shards)
{
    struct scan_text key;
    bool first = true, mapped = false;
    if (!scan_enter(&shards->json, '{')) {
        return broken(shards);
    }
    while (scan_key(&shards->json, &first, &key)) {
        if (scan_is(key, "weight_map") && !mapped) {
            mapped = true;
            TRY(take_map(shards));
        } else if (scan_is(key, "metadata") && scan_peek(&shards->json) == '{') {
            TRY(take_metadata(shards));
        } else if (scan_is(key, "weight_map") || !scan_skip(&shards->json)) {
            scan_fail(&shards->json, "weight_map is there twice");
            break;
        }
    }
    if (shards->json.what || !scan_end(&shards->json)) {
        return broken(shards);
    }
    return mapped ? 0
                  : FAULT(&shards->faults, SOLO_CKPT_UNSUPPORTED, 0,
                          "this JSON has no weight_map: it is not an index of shards");
}

int solo_ckpt_shards_open(const void *json, size_t size, struct solo_ckpt_shards **out)
{
    struct solo_ckpt_shards *shards = calloc(1, sizeof *shards);
    if (!shards) {
        return err_set(SOLO_ENOMEM, "no memory for an index of shards");
    }
    shards->json = scan_of(json, size);
    int rc = scan_is_utf8(json, size)
                 ? parse(shards)
                 : FAULT(&shards->faults, SOLO_CKPT_DAMAGED, 0, "the index is not UTF-8");
    if (rc == 0 || rc == SOLO_ECORRUPT) {
        rc = finish(shards);
    }
    if (rc < 0) {
        solo_ckpt_shards_close(shards);
        return rc;
    }
    *out = shards;
    return 0;
}

void solo_ckpt_shards_close(struct solo_ckpt_shards *shards)
{
    if (shards) {
        faults_free(&shards->faults);
        grown_free(&shards->texts);
        grown_free(&shards->names);
        grown_free(&shards->files);
        slots_free(&shards->by_name);
        free(shards);
    }
}

int solo_ckpt_shards_fault_get(const struct solo_ckpt_shards *shards, uint32_t index,
                               struct solo_ckpt_fault *out)
{
    if (index >= shards->faults.count || index >= FAULTS_KEPT || !shards->faults.kept) {
        return SOLO_ENOENT;
    }
    *out = shards->faults.kept[index];
    return 0;
}

size_t solo_ckpt_shards_names(const struct solo_ckpt_shards *shards,
                              const struct solo_ckpt_shard_name **out)
{
    *out = shards->names.items;
    return shards->names.count;
}

size_t solo_ckpt_shards_file(const struct solo_ckpt_shards *shards, uint32_t file, const char **out)
{
    if (file >= shards->files.count) {
        return 0;
    }
    const struct file_name *name = (struct file_name *)shards->files.items + file;
    *out = (char *)shards->texts.items + name->text_at;
    return name->bytes;
}

uint64_t solo_ckpt_shards_total(const struct solo_ckpt_shards *shards)
{
    return shards->total;
}
