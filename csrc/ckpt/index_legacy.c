/* index_legacy.c - torch.save before 1.6: five pickles in a row, then for each storage a count
 * of elements and its bytes. Nothing says where the pickles end, so they are read with more
 * and more of the file until they do. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "ckpt/dtypes.h"
#include "ckpt/index.h"

#define FIRST_BYTES (256u << 10)
#define VERSION     1001

/* magic, version, system information, the object, the storages' keys */
static int run_pickles(struct solo_ckpt *ckpt, uint64_t *keys_out)
{
    struct pickle *pickle = &ckpt->pickle;
    uint64_t object = SOLO_CKPT_NONE;
    for (int i = 0; i < 5; i++) {
        TRY(pickle_run(pickle));
        if (i == 1 &&
            (value_type(pickle->root) != SOLO_CKPT_INT || value_int(pickle->root) != VERSION)) {
            return FAULT(&ckpt->faults, SOLO_CKPT_UNSUPPORTED, pickle->at,
                         "the legacy format has a version other than 1001");
        }
        object = i == 3 ? pickle->root : object;
        ckpt->info.protocol = i == 3 ? pickle->protocol : ckpt->info.protocol;
    }
    *keys_out = pickle->root;
    pickle->root = object;
    return pickle_finish(pickle);
}

static int try_pickles(struct solo_ckpt *ckpt, uint64_t bytes, uint64_t *keys_out)
{
    free(ckpt->metadata);
    ckpt->metadata = NULL;
    pickle_free(&ckpt->pickle);
    ckpt->has_pickle = false; /* its values were in those bytes */
    ckpt->faults.count = 0;
    TRY(index_read(ckpt, 0, bytes, "the pickles", &ckpt->metadata));
    ckpt->metadata_bytes = (size_t)bytes;
    pickle_init(&ckpt->pickle, ckpt->metadata, (size_t)bytes, 0, &ckpt->options, &ckpt->faults);
    ckpt->pickle.file_bytes = ckpt->info.file_bytes;
    ckpt->has_pickle = true;
    return run_pickles(ckpt, keys_out);
}

/* The count that precedes a storage's bytes. */
static int check_count(struct solo_ckpt *ckpt, const struct solo_ckpt_storage *storage, uint64_t at)
{
    uint8_t bytes[8];
    if (add_capped(at, 8) > ckpt->info.file_bytes ||
        add_capped(at + 8, storage->bytes) > ckpt->info.file_bytes) {
        return FAULT(&ckpt->faults, SOLO_CKPT_TRUNCATED, ckpt->info.file_bytes,
                     "the file ends inside storage %s (%" PRIu64 " bytes at %" PRIu64 ")",
                     faults_name(storage->key, storage->key_bytes), storage->bytes, at);
    }
    if (at + 8 <= ckpt->metadata_bytes) {
        memcpy(bytes, ckpt->metadata + at, 8);
    } else {
        TRY(index_bytes(ckpt, at, bytes, 8));
    }
    struct reader reader = reader_of(bytes, 8);
    uint64_t count = read_u64(&reader);
    if (multiply_capped(count, dtype_bits(storage->dtype)) / 8 != storage->bytes) {
        return FAULT(&ckpt->faults, SOLO_CKPT_MISMATCH, at,
                     "storage %s should have %" PRIu64 " bytes, the file says %" PRIu64
                     " elements: several processes may have written it at once",
                     faults_name(storage->key, storage->key_bytes), storage->bytes, count);
    }
    return 0;
}

static int place_storage(struct solo_ckpt *ckpt, uint64_t key, uint64_t *at)
{
    size_t size;
    unsigned type = value_type(key);
    if (type != SOLO_CKPT_STR && type != SOLO_CKPT_OLD_STR) {
        return FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, *at, "a storage's key is not text");
    }
    const char *text = (const char *)pickle_text(&ckpt->pickle, key, &size);
    uint32_t row = pickle_storage_find(&ckpt->pickle, text, size);
    struct solo_ckpt_storage *storages = ckpt->pickle.storages.items;
    if (row == UINT32_MAX || storages[row].offset != SOLO_CKPT_NONE) {
        return FAULT(&ckpt->faults, SOLO_CKPT_DUPLICATE, *at,
                     "storage %s is listed twice, or of no tensor", faults_name(text, size));
    }
    struct solo_ckpt_storage *storage = &storages[row];
    TRY(check_count(ckpt, storage, *at));
    storage->offset = *at + 8;
    *at += 8 + storage->bytes;
    return 0;
}

int index_legacy(struct solo_ckpt *ckpt)
{
    uint64_t bytes = FIRST_BYTES, keys = SOLO_CKPT_NONE, size = ckpt->info.file_bytes;
    int rc;
    do {
        bytes = bytes > size ? size : bytes;
        rc = try_pickles(ckpt, bytes, &keys);
        if (rc == 0 || !ckpt->pickle.ran_out || bytes == size) {
            break;
        }
        bytes *= 4;
    } while (true);
    TRY(rc);
    if (value_type(keys) != SOLO_CKPT_LIST) {
        return FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, ckpt->pickle.at,
                     "the list of storages is missing");
    }
    uint64_t at = ckpt->pickle.at, cursor = 0;
    const uint64_t *items;
    for (size_t count; (count = solo_ckpt_items(ckpt, keys, &cursor, &items)) > 0;) {
        for (size_t i = 0; i < count; i++) {
            TRY(place_storage(ckpt, items[i], &at));
        }
    }
    ckpt->metadata_bytes = ckpt->pickle.at; /* what describes the data, for a fingerprint */
    const struct solo_ckpt_storage *storages = ckpt->pickle.storages.items;
    for (size_t i = 0; i < ckpt->pickle.storages.count; i++) {
        if (storages[i].offset == SOLO_CKPT_NONE) {
            FAULT(&ckpt->faults, SOLO_CKPT_MISSING, at, "storage %s is missing",
                  faults_name(storages[i].key, storages[i].key_bytes));
        }
    }
    if (at < size && !ckpt->options.allow_trailing) {
        FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, at, "%" PRIu64 " bytes follow the last storage",
              size - at);
    }
    return 0;
}
