#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "solo_ckpt.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* of the format */
#define TAR_MAGIC_AT           257u

static const char *const names[SOLO_CKPT_KIND_COUNT] = {
    [SOLO_CKPT_UNKNOWN] = "unknown",
    [SOLO_CKPT_TORCH_ZIP] = "torch zip",
    [SOLO_CKPT_TORCHSCRIPT] = "TorchScript",
    [SOLO_CKPT_SAFETENSORS] = "safetensors",
    [SOLO_CKPT_LEGACY] = "torch legacy",
    [SOLO_CKPT_PICKLE] = "pickle",
    [SOLO_CKPT_TAR] = "tar",
    [SOLO_CKPT_ZIP] = "zip",
    [SOLO_CKPT_GGUF] = "GGUF",
    [SOLO_CKPT_LFS_POINTER] = "Git LFS pointer",
    [SOLO_CKPT_HTML] = "web page",
    [SOLO_CKPT_JSON] = "JSON",
    [SOLO_CKPT_GZIP] = "gzip",
    [SOLO_CKPT_ZSTD] = "zstd",
    [SOLO_CKPT_BZIP2] = "bzip2",
    [SOLO_CKPT_XZ] = "xz",
    [SOLO_CKPT_HDF5] = "HDF5",
    [SOLO_CKPT_NUMPY] = "NumPy array",
    [SOLO_CKPT_IMAGE] = "picture",
    [SOLO_CKPT_ONNX] = "ONNX",
    [SOLO_CKPT_EMPTY] = "empty",
    [SOLO_CKPT_ZEROS] = "zero-filled",
};

const char *solo_ckpt_kind_name(enum solo_ckpt_kind kind)
{
    return (unsigned)kind < SOLO_CKPT_KIND_COUNT ? names[kind] : names[SOLO_CKPT_UNKNOWN];
}

struct head {
    const uint8_t *bytes;
    size_t size;
};

static bool begins(struct head head, const char *magic, size_t size)
{
    return head.size >= size && memcmp(head.bytes, magic, size) == 0;
}

static bool begins_without_case(struct head head, const char *text)
{
    size_t at = 0;
    while (at < head.size && (head.bytes[at] == ' ' || head.bytes[at] == '\n' ||
                              head.bytes[at] == '\r' || head.bytes[at] == '\t')) {
        at++;
    }
    for (; *text; text++, at++) {
        if (at >= head.size || (head.bytes[at] | 0x20) != (*text | 0x20)) {
            return false;
        }
    }
    return true;
}

static bool is_safetensors(struct head head, uint64_t file_size)
{
    if (head.size < 9) {
        return false;
    }
    struct reader reader = reader_of(head.bytes, head.size);
    uint64_t header = read_u64(&reader);
    if (header > SAFETENSORS_HEADER_MAX) {
        return false;
    }
    if (header > file_size - 8) { /* cut inside its header: be surer of the text */
        return head.size >= 10 && head.bytes[8] == '{' && head.bytes[9] == '"';
    }
    return head.bytes[8] == '{' || head.bytes[8] == ' ';
}

/* ir_version, then a text field: the head of an ONNX model, which has no magic number. */
static bool is_onnx(struct head head)
{
    return head.size > 5 && head.bytes[0] == 0x08 && head.bytes[1] < 64 && head.bytes[2] == 0x12 &&
           head.bytes[3] < 64 && (head.bytes[4] | 0x20) >= 'a' && (head.bytes[4] | 0x20) <= 'z';
}

/* The magic number, pickled by any protocol; from 4 on a frame is round it. */
static bool is_legacy(struct head head)
{
    static const char magic[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    if (head.size < 2 || head.bytes[0] != 0x80 || head.bytes[1] < 2 || head.bytes[1] > 5) {
        return false;
    }
    size_t at = head.size > 11 && head.bytes[2] == 0x95 ? 11 : 2;
    return begins((struct head){head.bytes + at, head.size - at}, magic, sizeof magic - 1);
}

static bool all_zero(struct head head)
{
    for (size_t i = 0; i < head.size; i++) {
        if (head.bytes[i]) {
            return false;
        }
    }
    return true;
}

#define MAGIC(text) text, sizeof(text) - 1

static const struct {
    const char *magic;
    size_t size;
    enum solo_ckpt_kind kind;
} magics[] = {
    {MAGIC("GGUF"), SOLO_CKPT_GGUF},
    {MAGIC("version https://git-lfs"), SOLO_CKPT_LFS_POINTER},
    {MAGIC("\x1f\x8b"), SOLO_CKPT_GZIP},
    {MAGIC("\x28\xb5\x2f\xfd"), SOLO_CKPT_ZSTD},
    {MAGIC("BZh"), SOLO_CKPT_BZIP2},
    {MAGIC("\xfd"
           "7zXZ"),
     SOLO_CKPT_XZ},
    {MAGIC("\x89HDF"), SOLO_CKPT_HDF5},
    {MAGIC("\x93NUMPY"), SOLO_CKPT_NUMPY},
    {MAGIC("\xff\xd8\xff"), SOLO_CKPT_IMAGE},
    {MAGIC("\x89PNG"), SOLO_CKPT_IMAGE},
};

enum solo_ckpt_kind solo_ckpt_sniff(const void *bytes, size_t size, uint64_t file_size)
{
    struct head head = {bytes, size};
    if (file_size == 0 || size == 0) {
        return SOLO_CKPT_EMPTY;
    }
    if (begins(head, MAGIC("PK\3\4")) || begins(head, MAGIC("PK\5\6"))) {
        return SOLO_CKPT_TORCH_ZIP; /* its directory says what kind of zip */
    }
    if (all_zero(head)) {
        return SOLO_CKPT_ZEROS;
    }
    if (is_safetensors(head, file_size)) { /* before pickle: a length can look like one */
        return SOLO_CKPT_SAFETENSORS;
    }
    if (is_legacy(head)) {
        return SOLO_CKPT_LEGACY;
    }
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        if (begins(head, magics[i].magic, magics[i].size)) {
            return magics[i].kind;
        }
    }
    if (size > TAR_MAGIC_AT + 5 && memcmp(head.bytes + TAR_MAGIC_AT, "ustar", 5) == 0) {
        return SOLO_CKPT_TAR;
    }
    if (begins_without_case(head, "<!doctype") || begins_without_case(head, "<html") ||
        begins_without_case(head, "<?xml")) {
        return SOLO_CKPT_HTML;
    }
    if (size >= 2 && head.bytes[0] == 0x80 && head.bytes[1] >= 1 && head.bytes[1] <= 5) {
        return SOLO_CKPT_PICKLE;
    }
    if (begins_without_case(head, "{") || begins_without_case(head, "[")) {
        return SOLO_CKPT_JSON;
    }
    return is_onnx(head) ? SOLO_CKPT_ONNX : SOLO_CKPT_UNKNOWN;
}
