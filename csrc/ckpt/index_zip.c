/* index_zip.c - a file of torch.save (or torch.jit.save): the container, then its pickle,
 * then the two joined: every storage the pickle names is a record of exactly its size. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "ckpt/index.h"

#define TAIL_FIRST  4096u /* torch's own end records need 98 bytes */
#define SMALL_BYTES 64u   /* of "version", "byteorder" and their like */

static int read_end(struct solo_ckpt *ckpt, uint32_t tail_bytes, struct zip_end *end)
{
    uint64_t size = ckpt->info.file_bytes < tail_bytes ? ckpt->info.file_bytes : tail_bytes;
    uint8_t *tail;
    TRY(index_read(ckpt, ckpt->info.file_bytes - size, size, "the end of the zip", &tail));
    int rc = zip_find_end(tail, (size_t)size, ckpt->info.file_bytes, end, &ckpt->faults);
    free(tail);
    return rc;
}

static int read_directory(struct solo_ckpt *ckpt)
{
    struct zip_end end = {0};
    int rc = read_end(ckpt, TAIL_FIRST, &end);
    if (rc == SOLO_ECORRUPT && ckpt->info.file_bytes > TAIL_FIRST) {
        ckpt->faults.count = 0; /* a long comment, or junk: look further before judging */
        rc = read_end(ckpt, ZIP_TAIL_BYTES, &end);
    }
    TRY(rc);
    TRY(index_read(ckpt, end.directory_offset, end.directory_bytes, "the zip directory",
                   &ckpt->directory));
    ckpt->directory_bytes = (size_t)end.directory_bytes;
    return zip_parse(ckpt->directory, ckpt->directory_bytes, &end, &ckpt->zip, &ckpt->faults);
}

/* Local headers are read only where the data's place does not follow from the directory. */
static int place_rest(struct solo_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->zip.count; i++) {
        if (ckpt->zip.records[i].offset != SOLO_CKPT_NONE) {
            continue;
        }
        uint8_t *local;
        uint64_t bytes = ZIP_LOCAL_BYTES + (uint64_t)ckpt->zip.places[i].full_bytes;
        TRY(index_read(ckpt, ckpt->zip.records[i].header_offset, bytes, "a zip header", &local));
        zip_local_apply(&ckpt->zip, i, local, (size_t)bytes, &ckpt->faults);
        free(local);
    }
    return 0;
}

/* A record with its local header compared; `data` is inside *room_out, to be freed. */
static int read_record(struct solo_ckpt *ckpt, const struct solo_ckpt_record *record,
                       uint8_t **room_out, uint8_t **data_out)
{
    if (record->method != 0) {
        return FAULT(&ckpt->faults, SOLO_CKPT_UNSUPPORTED, record->header_offset,
                     "record %s is compressed, which torch.save never does",
                     faults_name(record->name, record->name_bytes));
    }
    uint64_t before = record->offset - record->header_offset;
    TRY(index_read(ckpt, record->header_offset, before + record->bytes, "a zip record", room_out));
    size_t index = (size_t)(record - ckpt->zip.records);
    int rc = zip_local_check(&ckpt->zip, index, *room_out, (size_t)before);
    if (rc == 0 && record->crc &&
        solo_crc32(0, *room_out + before, (size_t)record->bytes) != record->crc) {
        rc = err_set(SOLO_ECORRUPT, "record %s does not have its checksum",
                     faults_name(record->name, record->name_bytes));
        faults_take(&ckpt->faults, SOLO_CKPT_CHECKSUM, record->offset, rc);
        free(*room_out);
        *room_out = NULL;
        return rc;
    }
    if (rc < 0) {
        free(*room_out);
        *room_out = NULL;
        return faults_take(&ckpt->faults, SOLO_CKPT_MISMATCH, record->header_offset, rc);
    }
    *data_out = *room_out + before;
    return 0;
}

/* A small record's text; "" if absent. */
static int read_small(struct solo_ckpt *ckpt, const char *name, char out[SMALL_BYTES])
{
    const struct solo_ckpt_record *record = zip_find(&ckpt->zip, name, strlen(name));
    uint8_t *room = NULL, *data = NULL;
    out[0] = 0;
    if (!record) {
        return 0;
    }
    if (record->bytes >= SMALL_BYTES) {
        return FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, record->header_offset,
                     "record %s has %" PRIu64 " bytes, which is no such text", name, record->bytes);
    }
    int rc = read_record(ckpt, record, &room, &data);
    if (!data) {
        return rc;
    }
    memcpy(out, data, (size_t)record->bytes);
    out[record->bytes] = 0;
    free(room);
    return 0;
}

static uint32_t number_in(const char *text)
{
    uint32_t value = 0;
    while (*text >= '0' && *text <= '9' && value < 100000000) {
        value = value * 10 + (uint32_t)(*text++ - '0');
    }
    return value;
}

static int read_info(struct solo_ckpt *ckpt)
{
    char text[SMALL_BYTES];
    TRY(read_small(ckpt, "version", text));
    if (!text[0]) {
        TRY(read_small(ckpt, ".data/version", text));
    }
    ckpt->info.version = number_in(text);
    TRY(read_small(ckpt, ".storage_alignment", text));
    ckpt->info.alignment = number_in(text);
    TRY(read_small(ckpt, ".data/serialization_id", text));
    memcpy(ckpt->info.identity, text, sizeof ckpt->info.identity - 1);
    TRY(read_small(ckpt, "byteorder", text));
    ckpt->info.big_endian = strcmp(text, "big") == 0;
    if (text[0] && !ckpt->info.big_endian && strcmp(text, "little") != 0) {
        return FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, 0,
                     "byteorder is \"%s\", neither little nor big",
                     faults_name(text, strlen(text)));
    }
    return 0;
}

static int read_pickle(struct solo_ckpt *ckpt)
{
    const struct solo_ckpt_record *record = zip_find(&ckpt->zip, "data.pkl", 8);
    const struct solo_ckpt_record *constants = zip_find(&ckpt->zip, "constants.pkl", 13);
    record = ckpt->options.constants ? constants : record;
    if (!record) {
        ckpt->info.kind = SOLO_CKPT_ZIP;
        return FAULT(&ckpt->faults, SOLO_CKPT_UNSUPPORTED, 0,
                     "a zip archive without data.pkl: not written by torch.save");
    }
    if (constants) {
        ckpt->info.kind = SOLO_CKPT_TORCHSCRIPT;
        ckpt->options.placeholders = 1; /* its classes are code, which is not run here */
    }
    uint8_t *data = NULL;
    TRY(read_record(ckpt, record, &ckpt->metadata, &data));
    ckpt->metadata_bytes = (size_t)(record->offset - record->header_offset + record->bytes);
    pickle_init(&ckpt->pickle, data, (size_t)record->bytes, record->offset, &ckpt->options,
                &ckpt->faults);
    ckpt->has_pickle = true;
    ckpt->pickle.file_bytes = ckpt->info.file_bytes;
    TRY(pickle_run(&ckpt->pickle));
    ckpt->info.protocol = ckpt->pickle.protocol;
    if (ckpt->pickle.at != ckpt->pickle.size) {
        FAULT(&ckpt->faults, SOLO_CKPT_DAMAGED, record->offset + ckpt->pickle.at,
              "bytes follow the end of the pickle");
    }
    return pickle_finish(&ckpt->pickle);
}

static void join_storage(struct solo_ckpt *ckpt, struct solo_ckpt_storage *storage)
{
    const char *folder = ckpt->options.constants ? "constants/" : "data/";
    size_t folder_bytes = strlen(folder);
    char name[128];
    const struct solo_ckpt_record *record = NULL;
    if (storage->key_bytes < sizeof name - folder_bytes) {
        memcpy(name, folder, folder_bytes + 1);
        memcpy(name + folder_bytes, storage->key, storage->key_bytes);
        record = zip_find(&ckpt->zip, name, folder_bytes + storage->key_bytes);
    }
    if (!record) {
        FAULT(&ckpt->faults, SOLO_CKPT_MISSING, 0, "record %s%s is missing", folder,
              faults_name(storage->key, storage->key_bytes));
        return;
    }
    if (record->bytes != storage->bytes) {
        FAULT(&ckpt->faults, SOLO_CKPT_MISMATCH, record->header_offset,
              "record %s%s has %" PRIu64 " bytes, its tensors need %" PRIu64, folder,
              faults_name(storage->key, storage->key_bytes), record->bytes, storage->bytes);
        return;
    }
    if (record->method != 0) {
        ckpt->inflated_bytes = add_capped(ckpt->inflated_bytes, record->bytes);
        if (ckpt->inflated_bytes > pickle_inflated_max(ckpt->info.file_bytes)) {
            FAULT(&ckpt->faults, SOLO_CKPT_LIMIT, record->header_offset,
                  "compressed records become more than %" PRIu64 " bytes",
                  pickle_inflated_max(ckpt->info.file_bytes));
            return;
        }
    }
    storage->offset = record->offset;
    storage->header_offset = record->header_offset;
    storage->packed_bytes = record->packed_bytes;
    storage->crc = record->crc;
    ckpt->info.crc_known |= record->crc != 0;
}

int index_zip(struct solo_ckpt *ckpt)
{
    TRY(read_directory(ckpt));
    if (ckpt->faults.count) {
        return 0; /* no second guess on a directory that cannot be trusted */
    }
    TRY(place_rest(ckpt));
    if (ckpt->faults.count) {
        return 0;
    }
    TRY(read_info(ckpt));
    TRY(read_pickle(ckpt));
    struct solo_ckpt_storage *storages = ckpt->pickle.storages.items;
    for (size_t i = 0; i < ckpt->pickle.storages.count; i++) {
        join_storage(ckpt, &storages[i]);
    }
    return 0;
}
