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
