from __future__ import annotations

import ctypes
import ctypes.util
import gc
import string
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oxproxy.routing.bindings import patterns
from oxproxy.routing.bindings.patterns import Budget, InvalidPattern, MissingLibraryError, Pattern, compile_pattern


def search(pattern: bytes, subject: bytes) -> bool | None:
    return compile_pattern(pattern).search(subject, Budget())


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (rb"(?<=a|bc)d", b"bcd", True),
        (rb"a*+a", b"aaa", False),
        (rb"^\R$", b"\r\n", True),
        (rb"(?i)ABC", b"aBc", True),
        (rb"^b$", b"b\n", True),
        (rb"\Ab\z", b"b\n", False),
        (b"(?x) a b # comment", b"ab", True),
        (rb"(?'y'a)\k'y'", b"aa", True),
        (rb"\((?:[^()]++|(?R))*\)", b"(a(b)c)", True),
        (rb"(a)?(?(1)b|c)", b"c", True),
        (rb"\Qa.b\E", b"axb", False),
        (rb"(?|(a)|(b))\1", b"bb", True),
        (rb"foo\Kbar", b"foobar", True),
        (rb"a(*COMMIT)b|ac", b"ac", False),
        (rb"[[:^digit:]]", b"1", False),
        (rb"\x{41}\N{U+42}", b"AB", None),
        (rb"^(a|ab)(?1)c$", b"aabc", True),
    ],
)
def test_patterns_are_those_of_pcre2(pattern: bytes, subject: bytes, expected: bool | None) -> None:
    if expected is None:  # \N{U+hh} is an error without (*UTF)
        with pytest.raises(InvalidPattern):
            compile_pattern(pattern)
    else:
        assert search(pattern, subject) is expected


def test_utf_8_needs_both_options_that_the_reference_names() -> None:
    options = [b"", b"(*UTF)", b"(*UCP)", b"(*UTF)(*UCP)"]
    assert [search(option + rb"(?i)^\w\w$", "łÓ".encode()) for option in options] == [False, False, False, True]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (b"", "empty pattern"),
        (b"a(b", "missing closing parenthesis at offset 3"),
        (b"a**", "quantifier does not follow a repeatable item at offset 2"),
        (rb"\i", "unrecognized character follows \\ at offset 1"),
        (rb"(a)\8", "reference to non-existent subpattern at offset 4"),
        (rb"(?<=a+)b", "lookbehind assertion is not fixed length at offset 0"),
        (b"(?#" + b"x" * 20_000 + b")a", "longer than 16384 bytes"),
    ],
)
def test_a_refused_pattern_has_the_reason_of_pcre2_with_its_offset(pattern: bytes, reason: str) -> None:
    with pytest.raises(InvalidPattern) as raised:
        compile_pattern(pattern)
    assert str(raised.value) == reason


def test_word_characters_and_case_follow_latin_1() -> None:
    words = {byte for byte in range(256) if search(rb"^\w$", bytes([byte]))}
    letters = (
        string.ascii_letters + "ªµº" + "".join(chr(code) for code in range(0xC0, 0x100) if code not in (0xD7, 0xF7))
    )
    assert words == set((letters + "0123456789_").encode("latin-1"))
    assert search(b"(?i)^\xe9$", b"\xc9")
    assert search(b"(?i)^\xc9$", b"\xe9")
    assert not search("(?i)^É$".encode(), "é".encode())


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("alpha", "41-5a 61-7a aa b5 ba c0-d6 d8-f6 f8-ff"),
        ("lower", "61-7a aa b5 ba df-f6 f8-ff"),
        ("upper", "41-5a c0-d6 d8-de"),
        ("alnum", "30-39 41-5a 61-7a aa b5 ba c0-d6 d8-f6 f8-ff"),
        ("blank", "09 20"),
        ("cntrl", "00-1f 7f-9f"),
        ("digit", "30-39"),
        ("graph", "21-7e a0-ff"),
        ("print", "20-7e a0-ff"),
        ("punct", "21-2f 3a-40 5b-60 7b-7e a0-a9 ab-b4 b6-b9 bb-bf d7 f7"),
        ("space", "09-0d 20"),
        ("word", "30-39 41-5a 5f 61-7a aa b5 ba c0-d6 d8-f6 f8-ff"),
        ("xdigit", "30-39 41-46 61-66"),
    ],
)
def test_character_classes_are_those_of_erlang(name: str, members: str) -> None:
    """The members are those of ``re:run`` in Erlang/OTP 23, 25 and 27."""
    found = {byte for byte in range(256) if search(b"[[:%s:]]" % name.encode(), bytes([byte]))}
    ends = ([int(end, 16) for end in part.split("-")] for part in members.split())
    assert found == {byte for end in ends for byte in range(end[0], end[-1] + 1)}


def test_utf8_characters_are_matched_only_if_the_pattern_requests_it() -> None:
    text = "é".encode()
    assert search(b"^..$", text)
    assert search(b"(*UTF)^.$", text)
    assert search(b"(*UTF)^.$", b"\xff") is False
    with pytest.raises(InvalidPattern):
        compile_pattern(b"(*UTF)\xff")


def test_a_pattern_ends_at_its_first_zero_byte() -> None:
    assert search(b"a\0(", b"a") is True
    assert search(b"\0(", b"b") is True


def test_a_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_LIBRARY", "libno-such-library.so.0")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(MissingLibraryError, match="libpcre2-8-0"):
        patterns._Library()


def test_the_library_is_found_under_the_name_of_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pcre2-8": patterns._LIBRARY}
    monkeypatch.setattr(patterns, "_LIBRARY", "libno-such-library.so.0")
    monkeypatch.setattr(ctypes.util, "find_library", found.get)
    assert patterns._Library().compile(b"a", 0)


@pytest.mark.parametrize("pattern", [b"(?=b)b|(?=b)ab", b"(?:(?=b)b|(?=b)ab)"])
def test_a_start_optimization_of_the_library_does_not_affect_lookaheads(pattern: bytes) -> None:
    """PCRE2 10.42 finds no match at all for these patterns, unless the optimization is switched off."""
    assert search(pattern, b"b") is True
    assert search(pattern, b"bb") is True
    assert search(pattern, b"a") is False
    assert compile_pattern(pattern)._search_charged(b"b", 1 << 60, Budget()) is True


#: Patterns that take exponential, cubic or quadratic time, each with the string that is repeated in the subject. PCRE2
#: cannot optimize these searches: it finds no required character to check first, and cannot search in linear time.
HOSTILE = [
    (rb"(a+)+$", b"a"),
    (rb"^(([a-z])+.)+[A-Z]([a-z])+$", b"a"),
    (rb"(.*)*\d", b"a"),
    (rb"(a|a)*\d", b"a"),
    (rb"(?:a*+|b)*[c-d]", b"ab"),
    (rb"(?:a+(*PRUNE))+b|q", b"a"),
    (rb"(?:a+(*SKIP:x))+b|q", b"a"),
    (rb"\s+$|q", b" "),
    (rb"[a-y]*z|q", b"a"),
    (b"(?=a*)" * 50 + b"b|q", b"a"),
    (rb"(?:a?){30}a{30}b|q", b"a"),
    (rb"(a*)*\1b|q", b"a"),
    (rb"(a(?1)?b|a)*c|q", b"a"),
    (rb"\X+b|q", b"a"),
    (rb"(*UTF)\X*+1|q", b"a"),
    (rb"(*UTF)\pL+$|1", b"a"),
    (b"(a)" * 300 + b"*b|q", b"a"),
    (rb"^(?:(a)|(b))*c|q", b"ab"),
    (rb"a[^b]*b|q", b"a"),
    (rb"(?<=a).*?b.*?c.*?d|q", b"a"),
    (rb"(?i)(x+x+)+y|q", b"x"),
    (rb"(\w+\s?)*!$|q", b"ab "),
    (rb".*.*.*=.*|q", b"a"),
    (rb"^(?!.*a.*a.*a.*b)", b"a"),
    (rb"(?:(?:a{0,9}){0,9}){0,9}b|q", b"a"),
    (rb"(a?){40}(a){40}z|q", b"a"),
    (rb"(?:.|\n)*?z|q", b"a"),
    (rb"[^\d]*+\d|q", b"a"),
    (rb"(?>a+)+z|q", b"a"),
    (rb"(?>(?:a|b)*)z|q", b"a"),
    (rb"(?|(a+)|(a))*z|q", b"a"),
    (rb"a{1,500}z|q", b"a"),
    (rb"(?s).*(?:.*z)|q", b"a"),
    (rb"(*NO_JIT)(a+)+z|q", b"a"),
    (rb"\w*\w*\w*\w*z|q", b"a"),
    (rb"(*UTF)(*UCP)(?i)\w*.*z|q", "é".encode()),
    (rb"(?:\b\w*)*z|q", b"a "),
    (rb"(?(?=a*+z)x|y)|q", b"a"),
    (rb"(a*?)*?z|q", b"a"),
    (rb"(?:[^z]*+b)|q", b"a"),
    (rb"(?<=a)(?:.*+)z|q", b"a"),
    (rb"(?:(?!\w*+z)\w)+z|q", b"a"),
    (rb"(?:\p{L}*+1)|q", b"a"),
    (rb"(?:\X++)+b|q", b"a"),
    (rb"(?i)(\w+).*\1z|q", b"aA"),
    (rb"(*UTF)(*UCP)(?i)(\w+)\1*+z|q", "é".encode()),
]
SIZES = (20, 60, 200, 1_000, 5_000, 30_000, 131_000)
#: Limits in CPU nanoseconds for one search, and for all searches of a decision: twice the values on an idle machine.
SEARCH_NS, DECISION_NS = 6_000_000, 40_000_000


def least(run: list[int]) -> int:
    """Return the minimum of several runs, since other processes may have slowed down some of them."""
    return min(run)


def timed(pattern: Pattern, subject: bytes) -> int:
    begin = time.process_time_ns()
    pattern.search(subject, Budget())
    return time.process_time_ns() - begin


@pytest.mark.parametrize(("source", "unit"), HOSTILE)
@pytest.mark.parametrize("jit", [True, False])
def test_an_exponential_search_is_abandoned_in_time(
    source: bytes, unit: bytes, jit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not jit:
        monkeypatch.setattr(patterns._Library, "jit", lambda *_: False)
    pattern = Pattern(source)
    slow = {}
    for size in SIZES:
        taken = least([timed(pattern, unit * (size // len(unit))) for _ in range(5)])
        if taken > SEARCH_NS:
            slow[size] = taken
    assert slow == {}


@pytest.mark.parametrize("size", [30, 1_000, 30_000])
@pytest.mark.parametrize(("source", "unit"), HOSTILE[::3])
def test_all_searches_of_a_budget_together_are_limited(source: bytes, unit: bytes, size: int) -> None:
    subject = unit * (size // len(unit))
    many = [Pattern(source if source.startswith(b"(*") else source + b"|zz%d" % number) for number in range(200)]
    runs = []
    for _ in range(3):
        budget = Budget()
        begin = time.process_time_ns()
        for pattern in many:
            if not budget.spent:
                pattern.search(subject, budget)
        runs.append(time.process_time_ns() - begin)
    assert least(runs) < DECISION_NS


def test_a_search_costs_the_same_every_time() -> None:
    pattern = compile_pattern(rb"(a|a)*\d|q")
    costs = set()
    for _ in range(3):
        budget = Budget()
        assert pattern.search(b"a" * 18, budget) in (False, None)
        costs.add((budget.left, budget.unproven, budget.spent))
    assert len(costs) == 1


def test_short_searches_do_not_use_up_the_budget() -> None:
    budget = Budget()
    for number in range(10_000):
        assert compile_pattern(rb"^order\.%d\.[a-z]+$" % (number % 50)).search(b"order.1234.abc", budget) is False
    assert (budget.left, budget.spent) == (Budget().left, False)


def test_an_exceeded_budget_is_reported() -> None:
    budget = Budget(1000)
    assert compile_pattern(rb"(a+)+$").search(b"a" * 40 + b"b", budget) is None
    assert budget.spent
    assert 0 <= budget.left < 1000
    generous = Budget()
    assert compile_pattern(rb"(a+)+$").search(b"a" * 40 + b"b", generous) is None
    assert not generous.spent  # only the limit of the search itself was reached


def test_compiling_takes_microseconds() -> None:
    runs = []
    for run in range(5):
        begin = time.process_time_ns()
        for number in range(200):
            Pattern(rb"^order\.%d\.(foo|bar)+[0-9]{1,3}$" % (run * 200 + number))
        runs.append(time.process_time_ns() - begin)
    assert least(runs) / 200 < 72_000  # twice the documented 36 us


@pytest.mark.parametrize("size", [1_000, 30_000, 130_000])
def test_long_subjects_are_searched_completely(size: int) -> None:
    text = (b"The quick brown fox jumps over the lazy dog; " * (size // 45 + 1))[-size:] + b"ERROR 2024-01-02\n"
    for pattern in (b"ERROR", b"(?i)error", rb"\d{4}-\d\d-\d\d$", b".*", rb"\bERROR\b", rb"(?s)^.*ERROR", rb"^.*ERROR"):
        assert search(pattern, text) is True
    for pattern in (b"^ERROR", rb"\d{5}", rb"^\s*$"):
        assert search(pattern, text) is False


def test_the_counting_form_of_a_pattern_matches_like_the_plain_form() -> None:
    for source in (b"b+c", b"^a.*c$", b"(?i)B", b"a|c$", rb"(\w+)-(\w+)", b"x?y{2,3}", b"^$", b"(?:ab)*c", b"[^a]c"):
        pattern = compile_pattern(source)
        for subject in (b"", b"abc", b"aabbcc", b"ab-cd", b"xyyz", b"ABC", b"ac\n"):
            plain = pattern.search(subject, Budget())
            counted = pattern._search_charged(subject, 1 << 60, Budget())
            assert (source, subject, plain) == (source, subject, counted)


#: Parts of patterns whose search cost is difficult to bound.
PIECES = (
    *"a b a* b+ .* a*+ .?+ (a) (a|b) (?:ab)* (?>a*) (?=b) (?!a) (?<=a) (?<!b)".split(),
    *r"\1 (?<n>a|b+) (?P=n) \k<n> \g{-1} (?1) (?&n) (?(1)a|b) (?(?=a)a|b) \X \b $".split(),
    *r"^ | (?i) (?s) (?x) \Qa* \E (?R)? (*COMMIT) (*SKIP) \K \G".split(),
    " # a\n",
    " # b",
)


@settings(max_examples=1500, deadline=None)
@example("", ["(?=b)", "b", "|", "(?=b)", "a b"], "b")
@given(st.sampled_from(("", "(*UTF)", "(*UCP)(*UTF)")), st.lists(st.sampled_from(PIECES), max_size=7), st.text("abA\n"))
def test_both_forms_of_a_difficult_pattern_agree(setting: str, pieces: list[str], subject: str) -> None:
    try:
        compiled = Pattern((setting + "".join(pieces)).encode())
    except InvalidPattern:
        return
    plain = compiled.search(subject.encode(), Budget())
    counted = compiled._search_charged(subject.encode(), 1 << 60, Budget())
    assert plain == counted or None in (plain, counted)


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        (rb"report.*(?=high)", b"report high" + b"k" * 489),
        (rb"(?<!x)report.*(?=high)", b"k" * 489 + b"report high"),
        (rb"(?P<w>[a-z]{2,}).*?(?P=w)", b"ab " * 166 + b"xy-xy"),
        (rb"(\w+).*\1", b" ".join(b"%d" % number for number in range(130))),
        (rb"(.+)\1", bytes(range(75, 255)) + b"aa"),
        (rb"\b(\w+)\b.*\b\1\b", b" ".join(b"w%d" % number for number in range(50)) + b" zz zz"),
        (rb"\X+high", b"k" * 996 + b"high"),
        (rb"(?>\w+\s?)+$", b"several words " * 35),
        (rb"^(?=.*\d)(?=.*[a-z])(?=.*[A-Z]).{8,}$", b"aB" + b"k" * 500 + b"3"),
        (rb"^(\((?:[^()]++|(?1))*\))$", b"(" * 80 + b"x" * 80 + b")" * 80),
        (rb'"(?:[^"\\]++|\\.)*+"', b"k" * 250 + b'"a \\" b"' + b"k" * 250),
        (rb"(?x) error .* (?=code) # a comment", b"x" * 250 + b"error" + b"y" * 250 + b"code"),
        (r"(*UTF)(*UCP)\w+.*(?=\bé\b)".encode(), "é".encode() * 100 + b" " + "é".encode()),
    ],
)
def test_patterns_with_uncounted_scans_match_long_subjects(pattern: bytes, subject: bytes) -> None:
    assert search(pattern, subject) is True


def test_a_pattern_can_lower_its_limit_but_not_raise_it() -> None:
    assert search(b"(*LIMIT_MATCH=1)(a+)+$", b"a" * 30 + b"b") is None
    assert search(b"(*LIMIT_MATCH=4000000000)(a+)+$", b"a" * 100 + b"b") is None


def test_a_quantifier_without_a_minimum_is_read_as_by_the_library() -> None:
    pcre2 = ctypes.PyDLL("libpcre2-8.so.0")
    version = ctypes.create_string_buffer(64)
    pcre2.pcre2_config_8(11, version)
    major, minor = version.value.split()[0].split(b"-")[0].split(b".")[:2]
    assert search(b"^a{,3}$", b"aa") is ((int(major), int(minor)) >= (10, 43))


def test_without_executable_memory_the_interpreter_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns._Library, "jit", lambda *_: False)
    assert patterns.jit_compiles() is False
    pattern = Pattern(rb"^order\.(\d+)$")
    assert (pattern.search(b"order.1", Budget()), pattern.search(b"order.x", Budget())) == (True, False)


def test_compiled_code_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = patterns._library()
    free = library.free
    freed: list[object] = []
    monkeypatch.setattr(library, "free", freed.append)
    pattern = Pattern(b"a+b")
    handle = pattern._code.handle
    del pattern
    gc.collect()
    assert freed == [handle]
    free(handle)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=60))
def test_arbitrary_bytes_are_compiled_or_refused(pattern: bytes, subject: bytes) -> None:
    try:
        compiled = Pattern(pattern)
    except InvalidPattern:
        return
    assert compiled.search(subject, Budget()) in (True, False, None)


@settings(max_examples=500, deadline=None)
@given(
    st.text(alphabet=r"ab()[]{}?*+|\^$.,:<>=!#-&'0129PRQEdwxgkK", max_size=25), st.text(alphabet="ab01 \n", max_size=20)
)
def test_both_forms_of_any_pattern_agree(source: str, subject: str) -> None:
    try:
        compiled = Pattern(source.encode())
    except InvalidPattern:
        return
    plain = compiled.search(subject.encode(), Budget())
    counted = compiled._search_charged(subject.encode(), 1 << 60, Budget())
    assert plain == counted or None in (plain, counted)
