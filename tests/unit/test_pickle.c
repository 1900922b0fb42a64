#include "check.h"
#include "ckpt/pickle.h"

static struct solo_ckpt_options options = {
    .size = sizeof options, .metadata_max = 1 << 20, .tensors_max = 100, .depth_max = 20};

struct judged {
    struct pickle pickle;
    struct faults faults;
};

static int judge(struct judged *judged, const char *bytes, size_t size)
{
    *judged = (struct judged){0};
    pickle_init(&judged->pickle, bytes, size, 0, &options, &judged->faults);
    int rc = pickle_run(&judged->pickle);
    return rc < 0 ? rc : pickle_finish(&judged->pickle);
}

static void done(struct judged *judged)
{
    pickle_free(&judged->pickle);
    faults_free(&judged->faults);
}
#define JUDGE(judged, text) judge(judged, text, sizeof(text) - 1)

#define STORAGE                                                                                    \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"                                             \
    "0X\3\0\0\0cpuK\6tQ"
#define TENSOR "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0K\2K\3\206K\3K\1\206\211)tR"

TEST(a_tensor_becomes_a_row_and_a_name)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2}X\1\0\0\0w" TENSOR "s."), 0);
    CHECK_EQ(judged.faults.count, 0);
    CHECK_EQ(judged.pickle.tensors.count, 1);
    const struct solo_ckpt_tensor *row = judged.pickle.tensors.items;
    CHECK_EQ(row->dims, 2);
    CHECK_EQ(row->sizes[1], 3);
    CHECK_EQ(row->strides[0], 3);
    const struct solo_ckpt_name *name = judged.pickle.names.items;
    CHECK_EQ(name->bytes, 1);
    CHECK_EQ(name->text[0], 'w');
    done(&judged);
}

TEST(a_tensor_that_reaches_beyond_its_storage_is_a_fault)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE
                            "K\1K\2K\3\206K\3K\1\206\211)tR."),
             SOLO_ECORRUPT);
    CHECK_EQ(judged.faults.kept[0].code, SOLO_CKPT_MISMATCH);
    done(&judged);
}

TEST(an_unknown_name_is_a_fault_and_the_judge_goes_on)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2cos\nsystem\ncmy\nNet\n\206."), 0);
    CHECK_EQ(judged.faults.count, 2);
    CHECK_STR(judged.faults.kept[0].text, "os.system");
    CHECK_STR(judged.faults.kept[1].text, "my.Net");
    done(&judged);
}

/* LONG_BINPUT 2^28 makes CPython's unpickler allocate 4 GB. */
TEST(an_absurd_memo_index_costs_nothing)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2Nr\0\0\0\x10."), SOLO_ECORRUPT);
    CHECK(judged.pickle.memo.room < 100);
    done(&judged);
}

TEST(what_was_an_argument_must_not_change)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2]q\0ccollections\nOrderedDict\nh\0\205R0h\0K\1a."),
             SOLO_ECORRUPT);
    CHECK_HAS(judged.faults.kept[0].text, "changes after it was used");
    done(&judged);
}

TEST(items_are_set_on_dicts_alone)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2K\1K\2K\3s."), SOLO_ECORRUPT);
    CHECK_HAS(judged.faults.kept[0].text, "not a dict");
    done(&judged);
    CHECK_EQ(JUDGE(&judged, "\x80\2)K\1a."), SOLO_ECORRUPT);
    done(&judged);
}

TEST(nesting_beyond_the_limit_is_told)
{
    char bytes[200] = "\x80\2";
    struct judged deep;
    memset(bytes + 2, ']', 60);
    memset(bytes + 62, 'a', 59);
    bytes[121] = '.';
    CHECK_EQ(judge(&deep, bytes, 122), SOLO_ECORRUPT);
    CHECK_HAS(deep.faults.kept[0].text, "nested deeper than 20");
    done(&deep);
}

TEST(a_cut_pickle_says_that_more_bytes_might_help)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2X\x10\0\0\0ab"), SOLO_ECORRUPT);
    CHECK(judged.pickle.ran_out);
    done(&judged);
}

TEST(small_and_negative_longs_are_ints)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2\x8a\2\xff\xff."), 0);
    CHECK_EQ(value_type(judged.pickle.root), SOLO_CKPT_INT);
    CHECK_EQ(value_int(judged.pickle.root), -1);
    done(&judged);
    CHECK_EQ(JUDGE(&judged, "\x80\2\x8a\0."), 0);
    CHECK_EQ(value_int(judged.pickle.root), 0);
    done(&judged);
}

/* `head`, then `part` `count` times, then `tail`; freed by the caller. */
static char *repeated(const char *head, size_t head_bytes, const char *part, size_t part_bytes,
                      size_t count, const char *tail, size_t tail_bytes, size_t *size_out)
{
    char *bytes = malloc(head_bytes + part_bytes * count + tail_bytes), *at = bytes;
    MUST(bytes);
    memcpy(at, head, head_bytes);
    at += head_bytes;
    for (size_t i = 0; i < count; i++, at += part_bytes) {
        memcpy(at, part, part_bytes);
    }
    memcpy(at, tail, tail_bytes);
    *size_out = (size_t)(at - bytes) + tail_bytes;
    return bytes;
}
#define TEXT(text) text, sizeof(text) - 1

static struct judged judge_repeated(char *bytes, size_t size)
{
    struct judged judged;
    options.placeholders = 1;
    options.tensors_max = 1u << 20;
    CHECK_EQ(judge(&judged, bytes, size), SOLO_ECORRUPT);
    CHECK_EQ(judged.faults.count, 1);
    CHECK_EQ(judged.faults.kept[0].code, SOLO_CKPT_LIMIT);
    options.placeholders = 0;
    options.tensors_max = 100;
    free(bytes);
    return judged;
}

/* A tensor of five bytes that would take a kilobyte: its arguments are in the memo. */
TEST(one_shape_of_64_dimensions_does_not_fill_memory)
{
    char head[400] = "\x80\2ctorch._utils\n_rebuild_tensor_v2\nq\0(" STORAGE "K\0(";
    size_t at = sizeof("\x80\2ctorch._utils\n_rebuild_tensor_v2\nq\0(" STORAGE "K\0(") - 1, size;
    for (int tuple = 0; tuple < 2; tuple++) {
        for (int i = 0; i < 64; i++, at += 2) {
            memcpy(head + at, "K\1", 2);
        }
        memcpy(head + at, tuple ? "tq\1" : "t(", tuple ? 3 : 2);
        at += tuple ? 3 : 2;
    }
    memcpy(head + at, "\x89Ntq\2", 5);
    char *bytes = repeated(head, at + 5, TEXT("0h\0h\2R"), 20000, TEXT("."), &size);
    struct judged judged = judge_repeated(bytes, size);
    CHECK(judged.pickle.shapes.room < size * 2);
    done(&judged);
}

/* The 129th global is kept anew each time it is named, by two texts in the memo. */
TEST(a_global_named_again_and_again_does_not_fill_memory)
{
    char head[1000] = "\x80\4";
    size_t at = 2, size;
    for (int i = 0; i < 128; i++, at += 6) {
        snprintf(head + at, 7, "cm\n%02x\n", i);
    }
    memcpy(head + at, "\x8c\1m\x94\x8c\1n\x94", 8);
    char *bytes = repeated(head, at + 8, TEXT("h\0h\1\x93"), 70000, TEXT("."), &size);
    struct judged judged = judge_repeated(bytes, size);
    CHECK_HAS(judged.faults.kept[0].text, "65536 globals");
    done(&judged);
}

/* Four bytes an item, and a million copied for each. */
TEST(one_long_key_of_many_items_does_not_take_for_ever)
{
    size_t long_bytes = 1u << 20, size;
    char *head = malloc(long_bytes + 20);
    MUST(head);
    memcpy(head, "\x80\2}(X\0\0\x10\0", 9);
    memset(head + 9, 'k', long_bytes);
    memcpy(head + 9 + long_bytes, "q\0]q\1", 5);
    char *bytes = repeated(head, long_bytes + 14, TEXT("h\0h\1"), 100000, TEXT("u."), &size);
    free(head);
    struct judged judged = judge_repeated(bytes, size);
    CHECK_HAS(judged.faults.kept[0].text, "keys of the object");
    done(&judged);
}

TEST(the_stack_the_marks_and_the_memo_have_the_limit_of_the_values)
{
    static const struct {
        const char *part;
        size_t part_bytes;
        const char *tail;
        size_t tail_bytes;
    } rows[] = {
        {TEXT("N"), TEXT(".")}, {TEXT("("), TEXT(".")}, {TEXT("N0"), TEXT("Nr\xc8\0\0\0.")}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct judged judged = {0};
        size_t size;
        char *bytes = repeated(TEXT("\x80\2"), rows[i].part, rows[i].part_bytes, 200, rows[i].tail,
                               rows[i].tail_bytes, &size);
        pickle_init(&judged.pickle, bytes, size, 0, &options, &judged.faults);
        judged.pickle.words_max = 100;
        CHECK_EQ(pickle_run(&judged.pickle), SOLO_ECORRUPT);
        CHECK_HAS(judged.faults.kept[0].text, "more than 100 values");
        free(bytes);
        done(&judged);
    }
}

/* Six bits of safetensors' float6, as whole bytes of no width: any size would fit any storage. */
TEST(a_pickled_tensor_has_elements_of_whole_bytes)
{
    struct judged judged;
    CHECK_EQ(JUDGE(&judged, "\x80\2ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE
                            "K\0J\xff\xff\xff\x7f\205K\1\205\211Nctorch\nfloat6_e2m3fn\ntR."),
             SOLO_ECORRUPT);
    CHECK_HAS(judged.faults.kept[0].text, "whole bytes");
    done(&judged);
}
