/* solo_ckpt.h - checkpoint files: what is in them, and reading it to where it is wanted.
 *
 * A file is indexed first: storages, tensors, names and the object around them, all checked,
 * before a byte of data is read. Nothing named in a file is ever called or imported here.
 *
 * Threads: one handle is used by one thread at a time; different handles do not meet. */
#ifndef SOLO_CKPT_H
#define SOLO_CKPT_H

#include "solo.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the first bytes say; the name of the file does not matter. */
enum solo_ckpt_kind {
    SOLO_CKPT_UNKNOWN,
    SOLO_CKPT_TORCH_ZIP,   /* torch.save since 1.6 */
    SOLO_CKPT_TORCHSCRIPT, /* torch.jit.save: the same container with code */
    SOLO_CKPT_SAFETENSORS,
    SOLO_CKPT_LEGACY, /* torch.save before 1.6 */
    SOLO_CKPT_PICKLE, /* a bare pickle, not written by torch.save */
    SOLO_CKPT_TAR,    /* torch.save before 0.1.10, or any tar */
    SOLO_CKPT_ZIP,    /* a zip archive of something else */
    SOLO_CKPT_GGUF,
    SOLO_CKPT_LFS_POINTER,
    SOLO_CKPT_HTML,
    SOLO_CKPT_JSON,
    SOLO_CKPT_GZIP,
    SOLO_CKPT_ZSTD,
    SOLO_CKPT_BZIP2,
    SOLO_CKPT_XZ,
    SOLO_CKPT_HDF5,
    SOLO_CKPT_NUMPY,
    SOLO_CKPT_IMAGE,
    SOLO_CKPT_ONNX,
    SOLO_CKPT_EMPTY,
    SOLO_CKPT_ZEROS, /* nothing but zero bytes where a head and a tail should be */
    SOLO_CKPT_KIND_COUNT,
};
const char *solo_ckpt_kind_name(enum solo_ckpt_kind kind);

/* The kind of a file of file_size bytes that begins with head (4 KiB are enough). */
enum solo_ckpt_kind solo_ckpt_sniff(const void *head, size_t head_size, uint64_t file_size);

/* ---- faults ---------------------------------------------------------------------------- */

enum solo_ckpt_fault_code {
    SOLO_CKPT_TRUNCATED,   /* the file ends before its content does */
    SOLO_CKPT_DAMAGED,     /* the bytes break their format's rules */
    SOLO_CKPT_DUPLICATE,   /* one name twice, also if only the case differs */
    SOLO_CKPT_OVERLAP,     /* two things claim the same bytes */
    SOLO_CKPT_MISMATCH,    /* two places of the file contradict each other */
    SOLO_CKPT_MISSING,     /* something that is referred to is not there */
    SOLO_CKPT_UNSAFE,      /* the file wants to call what is not on the list */
    SOLO_CKPT_LIMIT,       /* more than a named limit allows */
    SOLO_CKPT_UNSUPPORTED, /* well formed, and not read here */
    SOLO_CKPT_CHECKSUM,    /* data does not have the checksum the file states */
    SOLO_CKPT_CHANGED,     /* the file was changed while it was read */
    SOLO_CKPT_FAULT_COUNT,
};
struct solo_ckpt_fault {
    enum solo_ckpt_fault_code code;
    uint64_t offset; /* in the file, about */
    char text[SOLO_TEXT_MAX];
};

/* ---- the index of one file ------------------------------------------------------------- */

/* Where the bytes come from. `read` fills all of `bytes` or returns an error; it is called
 * only inside solo_ckpt_open, on the caller's thread. */
struct solo_ckpt_source {
    void *context;
    uint64_t base, size; /* the checkpoint is `size` bytes from `base` on */
    int (*read)(void *context, uint64_t offset, void *bytes, size_t count);
};

struct solo_ckpt_options {
    size_t size;
    uint64_t metadata_max;      /* bytes of directory, pickle or header; 0: 256 MiB */
    uint32_t tensors_max;       /* 0: 2 000 000 */
    uint32_t depth_max;         /* of nested containers; 0: 64, at most 200 */
    const char *const *allowed; /* "module.name", beyond those of torch.save itself; borrowed */
    size_t allowed_count;       /* during the call */
    int placeholders;           /* 1: other names are kept as placeholders, not refused */
    int allow_trailing;         /* 1: bytes after the end of a safetensors file are fine */
    int allow_expanded;         /* 1: no limit on tensors larger than their storage */
    int pickle_only;            /* 1: the source is a bare pickle, whatever it begins with */
    int constants;              /* 1: of TorchScript the constants of its code, not its tensors */
};

#define SOLO_CKPT_NONE UINT64_MAX

struct solo_ckpt_storage {
    uint64_t offset, bytes; /* of the data in the file */
    uint64_t header_offset; /* of its zip header, else SOLO_CKPT_NONE */
    uint64_t packed_bytes;  /* bytes in the file: other than `bytes` only if deflated */
    uint32_t crc;           /* CRC-32 of zip; 0: the writer did not compute one */
    uint32_t dtype;         /* of its elements, see solo_ckpt_dtype */
    const char *key;        /* record or tensor name; not zero-terminated; the index's */
    const char *location;   /* saved device, "cpu", "cuda:0"; not zero-terminated */
    uint32_t key_bytes, location_bytes;
};

struct solo_ckpt_tensor {
    uint32_t storage, dtype;
    uint32_t dims;
    uint32_t requires_grad;
    uint64_t first;        /* element of the storage where it begins */
    uint64_t metadata;     /* value with conj and neg bits, else SOLO_CKPT_NONE */
    const uint64_t *sizes; /* dims of each; the index's */
    const uint64_t *strides;
};

/* One place of the object where a tensor is: keys joined with '.'. Tied tensors have several. */
struct solo_ckpt_name {
    const char *text; /* not zero-terminated; the index's */
    uint32_t bytes;
    uint32_t key_at; /* where the last key begins: the name inside its own dict */
    uint32_t tensor;
};

struct solo_ckpt_record { /* a member of the zip */
    const char *name;     /* without the archive's top directory; not zero-terminated */
    uint32_t name_bytes;
    uint32_t method; /* 0 stored, 8 deflated */
    uint64_t offset, bytes, packed_bytes, header_offset;
    uint32_t crc;
};

struct solo_ckpt_info {
    enum solo_ckpt_kind kind;
    uint64_t file_bytes, metadata_bytes;
    uint32_t version;   /* of the container */
    uint32_t protocol;  /* of the pickle */
    uint32_t alignment; /* of storages, 0: unknown */
    int big_endian;     /* data must be swapped on this machine's kind */
    int crc_known;      /* the writer computed checksums */
    char identity[48];  /* torch's serialization id, "" if absent */
};

struct solo_ckpt;

/* Gives *out, to be closed, even when the file has faults (solo_ckpt_fault_get): then the
 * tables hold what could be understood, and must not be used to load. An error is returned
 * only for arguments, memory, or a failing read. */
int solo_ckpt_open(const struct solo_ckpt_source *source, const struct solo_ckpt_options *options,
                   struct solo_ckpt **out);
void solo_ckpt_close(struct solo_ckpt *ckpt); /* NULL is allowed */

void solo_ckpt_info_get(const struct solo_ckpt *ckpt, struct solo_ckpt_info *out);
uint32_t solo_ckpt_fault_count(const struct solo_ckpt *ckpt); /* all; the first 32 are kept */
int solo_ckpt_fault_get(const struct solo_ckpt *ckpt, uint32_t index, struct solo_ckpt_fault *out);
size_t solo_ckpt_storages(const struct solo_ckpt *ckpt, const struct solo_ckpt_storage **out);
size_t solo_ckpt_tensors(const struct solo_ckpt *ckpt, const struct solo_ckpt_tensor **out);
size_t solo_ckpt_names(const struct solo_ckpt *ckpt, const struct solo_ckpt_name **out);
size_t solo_ckpt_records(const struct solo_ckpt *ckpt, const struct solo_ckpt_record **out);
/* The metadata of safetensors as a JSON object's text, "" if absent; the index's. */
size_t solo_ckpt_note(const struct solo_ckpt *ckpt, const char **out);
/* The bytes that describe the file: zip directory and pickle, or header; for a fingerprint. */
size_t solo_ckpt_metadata(const struct solo_ckpt *ckpt, uint32_t part, const void **out);

/* Compares a record's local zip header, given from its header_offset on, with the directory. */
int solo_ckpt_local_check(const struct solo_ckpt *ckpt, const struct solo_ckpt_storage *storage,
                          const void *local, size_t size);

/* torch's name of a dtype ("float32") and its bits; NULL and 0 beyond the last. Names that
 * torch may lack ("float6_e2m3fn") are among them. */
const char *solo_ckpt_dtype(uint32_t dtype, uint32_t *bits_out);

/* ---- the object around the tensors ------------------------------------------------------- */

enum solo_ckpt_type {
    SOLO_CKPT_NIL,
    SOLO_CKPT_FALSE,
    SOLO_CKPT_TRUE,
    SOLO_CKPT_INT,       /* integer */
    SOLO_CKPT_LONG,      /* bytes: little-endian two's complement */
    SOLO_CKPT_FLOAT,     /* number */
    SOLO_CKPT_STR,       /* bytes: UTF-8, surrogates passed */
    SOLO_CKPT_OLD_STR,   /* bytes: a Python 2 str */
    SOLO_CKPT_BYTES,     /* bytes */
    SOLO_CKPT_BYTEARRAY, /* bytes */
    SOLO_CKPT_GLOBAL,    /* bytes: "module.name"; never imported here */
    SOLO_CKPT_TUPLE,     /* items */
    SOLO_CKPT_LIST,      /* items */
    SOLO_CKPT_DICT,      /* items: key, value, key, value */
    SOLO_CKPT_SET,       /* items */
    SOLO_CKPT_FROZENSET, /* items */
    SOLO_CKPT_CALL,      /* function(*arguments), then state, then items */
    SOLO_CKPT_TENSOR,    /* integer: row of the tensor table */
    SOLO_CKPT_STORAGE,   /* integer: row of the storage table */
};
struct solo_ckpt_value {
    enum solo_ckpt_type type;
    int64_t integer;
    double number;
    const char *bytes;
    size_t size;                         /* of bytes; items of a tuple */
    uint64_t function, arguments, state; /* values; SOLO_CKPT_NONE: absent */
    uint64_t first, count;               /* STORAGE: a part of it; count SOLO_CKPT_NONE: all */
    int created;                         /* CALL: made by cls.__new__ (NEWOBJ) */
    int keyed;                           /* CALL: its items are key, value pairs (SETITEMS) */
};

/* The value that the file stands for; SOLO_CKPT_NONE if it has none (safetensors). */
uint64_t solo_ckpt_root(const struct solo_ckpt *ckpt);
void solo_ckpt_value_get(const struct solo_ckpt *ckpt, uint64_t value, struct solo_ckpt_value *out);
/* The next run of items: begin with *cursor = 0, stop at 0. */
size_t solo_ckpt_items(const struct solo_ckpt *ckpt, uint64_t value, uint64_t *cursor,
                       const uint64_t **items_out);

/* ---- indexes of shards ----------------------------------------------------------------- */

/* {"metadata": {...}, "weight_map": {name: file}} */
struct solo_ckpt_shard_name {
    const char *text; /* decoded; not zero-terminated */
    uint32_t bytes;
    uint32_t file;
};
struct solo_ckpt_shards;
/* Gives *out even with faults, as solo_ckpt_open. */
int solo_ckpt_shards_open(const void *json, size_t size, struct solo_ckpt_shards **out);
void solo_ckpt_shards_close(struct solo_ckpt_shards *shards);
int solo_ckpt_shards_fault_get(const struct solo_ckpt_shards *shards, uint32_t index,
                               struct solo_ckpt_fault *out);
size_t solo_ckpt_shards_names(const struct solo_ckpt_shards *shards,
                              const struct solo_ckpt_shard_name **out);
size_t solo_ckpt_shards_file(const struct solo_ckpt_shards *shards, uint32_t file,
                             const char **out); /* bytes of its name; 0: no such file */
uint64_t solo_ckpt_shards_total(const struct solo_ckpt_shards *shards); /* 0: not stated */

/* ---- local files and memory ------------------------------------------------------------ */

struct solo_file_info {
    uint64_t bytes, modified_ns, inode, device;
    int network;         /* 1: NFS, Lustre, FUSE, ...: never mapped */
    char filesystem[16]; /* "ext4", "nfs" */
};
struct solo_file;
/* Gives *out: solo_file_close. SOLO_ENOENT; SOLO_EINVAL: not a regular file; SOLO_ESYS. */
int solo_file_open(const char *path, struct solo_file **out);
void solo_file_close(struct solo_file *file);
int solo_file_info_get(struct solo_file *file, struct solo_file_info *out);
/* A source that reads the file, which it borrows. */
void solo_file_source(struct solo_file *file, struct solo_ckpt_source *out);
/* Share of some sampled pages that are in the page cache, 0 to 100; -1: cannot be told. */
int solo_file_cached(struct solo_file *file, uint64_t offset, uint64_t bytes);
/* The file `from` takes the name `to`; 1: what had that name is called `from` now; 0: nothing
 * had it. At once: of two that take one name each gets another file back. SOLO_ENOTSUP: the
 * file system cannot, and nothing was changed. */
int solo_file_swap(const char *from, const char *to);

/* Memory for `bytes`, in huge pages where the kernel gives them; address minus `congruent_to`
 * is a multiple of 4096, from 2 MiB on of 2 MiB. Untouched parts cost nothing. */
struct solo_arena {
    uint8_t *at;
    uint64_t bytes;
    void *map;
    size_t map_bytes;
};
int solo_arena_map(uint64_t bytes, uint64_t congruent_to, struct solo_arena *out);
/* The file itself as private memory: pages come when touched, changes are not written back. */
int solo_arena_map_file(struct solo_file *file, uint64_t bytes, struct solo_arena *out);
void solo_arena_unmap(struct solo_arena *arena);
/* Gives whole pages inside the range back to the system; their content is lost. */
void solo_arena_drop(const struct solo_arena *arena, uint64_t offset, uint64_t bytes);

/* ---- reading many ranges --------------------------------------------------------------- */

struct solo_ckpt_read {
    uint64_t offset, bytes;
    void *to;
    uint64_t header_offset; /* its zip header is compared first; SOLO_CKPT_NONE: there is none */
    const struct solo_ckpt *ckpt; /* whose storage it is, if header_offset is given; borrowed */
    uint32_t storage;
    uint32_t crc;       /* expected; 0: not checked */
    uint32_t crc_found; /* set where crc was given */
};
enum solo_read_direct { SOLO_DIRECT_AUTO, SOLO_DIRECT_NEVER, SOLO_DIRECT_ALWAYS };
struct solo_read_options {
    size_t size;
    uint32_t threads;             /* 0: of the machine, at most 8 */
    enum solo_read_direct direct; /* past the page cache: AUTO where it is cold */
    int gaps_writable;            /* bytes between neighbouring targets may be overwritten */
    uint64_t base;                /* added to every offset */
};
struct solo_read_progress {
    uint64_t bytes_done, bytes_total;
    int direct; /* 1: past the page cache */
};
struct solo_reading;
/* Starts to read all ranges on threads of its own; borrows everything until wait has returned
 * something other than SOLO_EAGAIN. A checksum that differs is not an error here: compare. */
int solo_read_start(struct solo_file *file, struct solo_ckpt_read *reads, size_t count,
                    const struct solo_read_options *options, struct solo_reading **out);
/* 0: done. SOLO_EAGAIN: not yet, after timeout_ms. Other errors: it has stopped. */
int solo_read_wait(struct solo_reading *reading, uint32_t timeout_ms);
void solo_read_stop(struct solo_reading *reading); /* wait then ends soon, SOLO_EABORTED */
void solo_read_progress_get(struct solo_reading *reading, struct solo_read_progress *out);
void solo_read_free(struct solo_reading *reading); /* stops and waits if need be */

/* CRC-32 of zip; begin with 0. The hardware's carry-less multiply where there is one. */
uint32_t solo_crc32(uint32_t crc, const void *bytes, size_t size);
/* CRC of a block of second_bytes appended to another, from both CRCs. */
uint32_t solo_crc32_join(uint32_t first, uint32_t second, uint64_t second_bytes);

#ifdef __cplusplus
}
#endif
#endif
