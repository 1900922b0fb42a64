#include "codec/codec.h"

#include "base/err.h"
#include "codec/codec_row.h"
#include "kernels/convert.h"
#include "kernels/cpu.h"

/* Formats are little-endian and floats are copied as they are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap bytes");

static const struct codec *const table[] = {&codec_fp32, &codec_bf16, &codec_int8, &codec_int4,
                                            NULL};

int codec_find(const char *name, const struct codec **out)
{
    const char *wanted = name && *name ? name : codec_fp32.name;
    for (size_t i = 0; table[i]; i++) {
        if (strcmp(wanted, table[i]->name) == 0) {
            *out = table[i];
            return 0;
        }
    }
    return err_set(SOLO_EINVAL, "there is no codec \"%.40s\": use fp32, bf16, int8 or int4",
                   wanted);
}

const struct codec *codec_exact(void)
{
    return &codec_fp32;
}

const char *codec_name(const struct codec *codec)
{
    return codec->name;
}

bool codec_has_residual(const struct codec *codec)
{
    return !codec->is_plain;
}

size_t codec_bytes(const struct codec *codec, size_t count)
{
    return codec->bytes(count);
}

/* ---- pieces: a list of tensors read and written block by block ------------------------------ */

struct cursor {
    const struct codec_piece *piece;
    size_t at; /* element in it */
};

static void *cursor_address(const struct cursor *cursor)
{
    return (uint8_t *)cursor->piece->data + cursor->at * solo_dtype_bytes(cursor->piece->dtype);
}

/* How many of the next `left` elements lie in one piece; skips pieces that are used up. */
static size_t cursor_run(struct cursor *cursor, size_t left)
{
    while (cursor->at == cursor->piece->count) {
        cursor->piece++;
        cursor->at = 0;
    }
    size_t here = cursor->piece->count - cursor->at;
    return here < left ? here : left;
}

/* The next `count` elements as fp32: where they are if that is one run of fp32, else in room. */
static const float *cursor_read(struct cursor *cursor, float *room, size_t count)
{
    for (size_t done = 0; done < count;) {
        size_t run = cursor_run(cursor, count - done);
        const void *from = cursor_address(cursor);
        enum solo_dtype dtype = cursor->piece->dtype;
        cursor->at += run;
        if (run == count && dtype == SOLO_F32) {
            return from;
        }
        convert_to_f32(room + done, from, dtype, run);
        done += run;
    }
    return room;
}

static void cursor_write(struct cursor *cursor, const float *in, size_t count)
{
    for (size_t done = 0; done < count;) {
        size_t run = cursor_run(cursor, count - done);
        convert_from_f32(cursor_address(cursor), in + done, cursor->piece->dtype, run);
        cursor->at += run;
        done += run;
    }
}

static size_t block_of(size_t left)
{
    return left < VEC_BLOCK ? left : VEC_BLOCK;
}

void codec_gather(float *out, const struct codec_piece *pieces, size_t count)
{
    for (struct cursor cursor = {pieces, 0}; count;) {
        size_t run = cursor_run(&cursor, count);
        convert_to_f32(out, cursor_address(&cursor), cursor.piece->dtype, run);
        cursor.at += run;
        out += run;
        count -= run;
    }
}

void codec_scatter(const struct codec_piece *pieces, const float *in, size_t count)
{
    struct cursor cursor = {pieces, 0};
    cursor_write(&cursor, in, count);
}

/* ---- the operations ------------------------------------------------------------------------- */

/* The first of these values, which may begin at any byte, that the codec cannot hold. */
static size_t first_bad(const struct codec *codec, const float *values, size_t count)
{
    const uint8_t *at = (const uint8_t *)values;
    for (size_t i = 0; i < count; i++, at += sizeof(float)) {
        uint32_t bits;
        memcpy(&bits, at, sizeof bits);
        if ((bits & ~F32_SIGN) > codec->largest) {
            return i;
        }
    }
    return count;
}

/* Encodes one block of `values`, which for a plain codec are at `out` already. */
static int encode_block(const struct codec *codec, void *out, float *residual, const float *values,
                        size_t start, size_t count, size_t *bad_out)
{
    if (codec->encode(cpu_vec(), out, residual, values, count)) {
        return 0;
    }
    *bad_out = start + first_bad(codec, values, count);
    return SOLO_ENONFINITE;
}

int codec_encode(const struct codec *codec, const struct codec_delta *delta, void *out,
                 size_t *bad_out)
{
    const struct vec *vec = cpu_vec();
    const float *residual = delta->residual;
    static const float zeros[VEC_BLOCK];
    struct cursor cursor = {delta->pieces, 0};
    _Alignas(64) float room[VEC_BLOCK], local[VEC_BLOCK]; /* no load across two lines */
    uint8_t *code = out;
    for (size_t i = 0; i < delta->count; i += VEC_BLOCK) {
        size_t part = block_of(delta->count - i);
        float *values = codec->is_plain ? (float *)(void *)code : room;
        const float *theta = delta->pieces ? cursor_read(&cursor, local, part) : zeros;
        vec->delta(values, delta->anchor + i, theta, residual ? residual + i : NULL, part);
        TRY(encode_block(codec, code, delta->residual_out ? delta->residual_out + i : NULL, values,
                         i, part, bad_out));
        code += codec->bytes(part);
    }
    return 0;
}

int codec_reduce(const struct codec *codec, const struct codec_mean *mean, void *out,
                 size_t *bad_out)
{
    const struct vec *vec = cpu_vec();
    size_t block_bytes = codec->bytes(VEC_BLOCK), offset = 0;
    _Alignas(64) float room[VEC_BLOCK];
    for (size_t i = 0; i < mean->count; i += VEC_BLOCK, offset += block_bytes) {
        size_t part = block_of(mean->count - i);
        uint8_t *code = (uint8_t *)out + offset;
        float *sum = codec->is_plain ? (float *)(void *)code : room;
        if (mean->residual) {
            memcpy(sum, mean->residual + i, part * sizeof *sum);
        } else {
            memset(sum, 0, part * sizeof *sum);
        }
        for (size_t source = 0; source < mean->source_count; source++) {
            const uint8_t *bytes = mean->sources[source];
            float weight = mean->weights[source];
            if (bytes && weight != 0.0f) {
                codec->add(vec, sum, bytes + offset, weight, part);
            }
        }
        TRY(encode_block(codec, code, mean->residual_out ? mean->residual_out + i : NULL, sum, i,
                         part, bad_out));
    }
    return 0;
}

int codec_check(const struct codec *codec, const void *bytes, size_t size, size_t count)
{
    if (size != codec->bytes(count)) {
        return err_set(SOLO_EPEER, "%zu elements in %s take %zu bytes, a peer sent %zu", count,
                       codec->name, codec->bytes(count), size);
    }
    const uint8_t *code = bytes;
    for (size_t i = 0; i < count; i += VEC_BLOCK, code += codec->bytes(VEC_BLOCK)) {
        if (!codec->check(cpu_vec(), code, block_of(count - i))) {
            return err_set(SOLO_EPEER,
                           "a peer sent values in %s that are not finite, in elements %zu to %zu",
                           codec->name, i, i + block_of(count - i) - 1);
        }
    }
    return 0;
}

void codec_decode(const struct codec *codec, float *out, const void *bytes, size_t count)
{
    const uint8_t *code = bytes;
    for (size_t i = 0; i < count; i += VEC_BLOCK, code += codec->bytes(VEC_BLOCK)) {
        codec->decode(cpu_vec(), out + i, code, block_of(count - i));
    }
}

void codec_apply(const struct codec *codec, const struct codec_step *step)
{
    const struct vec *vec = cpu_vec();
    struct cursor cursor = {step->pieces, 0};
    _Alignas(64) float room[VEC_BLOCK];
    const uint8_t *code = step->mean;
    for (size_t i = 0; i < step->count; i += VEC_BLOCK, code += codec->bytes(VEC_BLOCK)) {
        size_t part = block_of(step->count - i);
        const float *mean = codec->is_plain ? (const float *)(const void *)code : room;
        if (!codec->is_plain) {
            codec->decode(vec, room, code, part);
        }
        outer_step(step->outer, step->anchor + i, step->momentum ? step->momentum + i : NULL, mean,
                   part);
        if (step->pieces) {
            cursor_write(&cursor, step->anchor + i, part);
        }
    }
}
