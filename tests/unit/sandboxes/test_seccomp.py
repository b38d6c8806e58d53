"""The filter of system calls, decided as the kernel would decide it."""

import errno
import struct

import pytest

from deputize.sandboxes.seccomp import UnknownMachine, assemble_filter

ALLOW, KILL, REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# read, clone, socket, socketpair, ioctl, personality, ptrace and unshare
NUMBERS = {"x86_64": (0, 56, 41, 53, 16, 135, 101, 272), "aarch64": (63, 220, 198, 199, 29, 92, 117, 97)}
CLONE3 = 435


def decide(content: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Run the filter for one call."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, *(0,) * (6 - len(arguments))))
    position, value = 0, 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("<HBBI", content, 8 * position)
        position += 1
        match code:
            case 0x20:
                value = struct.unpack_from("<I", data, operand)[0]
            case 0x54:
                value &= operand
            case 0x06:
                return int(operand)
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                position += if_true if holds else if_false
            case _:
                pytest.fail(f"the kernel does not know the instruction {code:#x}")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_programs_may_compute_and_start_others_but_make_no_namespace(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    read, clone, *_ = NUMBERS[machine]
    assert decide(content, architecture, read) == ALLOW
    assert decide(content, architecture, clone, 0x11) == ALLOW
    for bit in (0x80, 0x20000, *(1 << each for each in range(25, 31))):
        assert decide(content, architecture, clone, bit | 0x11) == REFUSE | errno.EPERM, hex(bit)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_only_sockets_of_the_same_machine_are_made(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    for number in NUMBERS[machine][2:4]:
        assert decide(content, architecture, number, 1) == ALLOW
        # IPv4, IPv6, netlink, packet, TIPC, kernel crypto and virtual machines
        for family in (2, 10, 16, 17, 30, 38, 40):
            assert decide(content, architecture, number, family) == REFUSE | errno.EPERM


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_program_with_a_proxy_makes_internet_sockets_too(machine: str) -> None:
    content, architecture = assemble_filter(machine, has_proxy=True), ARCHITECTURES[machine]
    nonblocking = 0o4000
    tcp = [(family, kind, protocol) for family in (2, 10) for kind in (1, 1 | nonblocking) for protocol in (0, 6)]
    # Datagrams, raw, MPTCP, SCTP, and families that are not the internet's
    others = [
        (2, 2, 0),
        (10, 2, 0),
        (2, 3, 1),
        (2, 1, 262),
        (2, 1, 132),
        (2, 5, 132),
        (16, 3, 0),
        (17, 3, 0),
        (40, 1, 0),
    ]
    for number in NUMBERS[machine][2:4]:
        for arguments in ((1, 1, 0), (1, 2, 0), *tcp):
            assert decide(content, architecture, number, *arguments) == ALLOW, arguments
        for arguments in others:
            assert decide(content, architecture, number, *arguments) == REFUSE | errno.EPERM, arguments


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_file_is_made_that_runs_as_its_owner(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    fchmod, fchmodat2, openat = {"x86_64": (91, 452, 257), "aarch64": (52, 452, 56)}[machine]
    refused = REFUSE | errno.EPERM
    for bits in (0o4755, 0o2755, 0o6000):
        assert decide(content, architecture, fchmod, 3, bits) == refused
        assert decide(content, architecture, fchmodat2, 3, 0, bits) == refused
        for flags in (0o100, 0o101, 0o20200000):
            assert decide(content, architecture, openat, 3, 0, flags, bits) == refused
        # Without a file that is made, the argument is what happens to be there.
        assert decide(content, architecture, openat, 3, 0, 0o200000, bits) == ALLOW
    assert decide(content, architecture, fchmod, 3, 0o1777) == ALLOW
    assert decide(content, architecture, openat, 3, 0, 0o100, 0o644) == ALLOW
    # Its mode is behind a pointer.
    assert decide(content, architecture, 437) == REFUSE | errno.ENOSYS


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_limit_of_crashes_stays_and_all_others_change(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    setrlimit, prlimit = {"x86_64": (160, 302), "aarch64": (164, 261)}[machine]
    assert (decide(content, architecture, setrlimit, 4, 1), decide(content, architecture, setrlimit, 7, 1)) == (
        REFUSE,
        ALLOW,
    )
    assert decide(content, architecture, prlimit, 0, 4, 1) == REFUSE
    assert decide(content, architecture, prlimit, 0, 4, 1 << 32) == REFUSE
    # Only asked for
    assert decide(content, architecture, prlimit, 0, 4, 0) == ALLOW
    assert decide(content, architecture, prlimit, 0, 7, 1) == ALLOW


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_arguments_that_reach_further_are_refused(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    ioctl, personality = NUMBERS[machine][4:6]
    assert decide(content, architecture, ioctl, 0, 0x5401) == ALLOW
    # The upper half of the argument, which the kernel ignores, does not hide it.
    assert decide(content, architecture, ioctl, 0, (1 << 32) | 0x5412) == REFUSE | errno.EPERM
    assert decide(content, architecture, personality, 0xFFFFFFFF) == ALLOW
    assert decide(content, architecture, personality, 0x40000) == REFUSE | errno.EPERM


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_everything_else_is_as_if_the_kernel_did_not_have_it(machine: str) -> None:
    content, architecture = assemble_filter(machine), ARCHITECTURES[machine]
    # keyctl, bpf, io_uring_setup, userfaultfd and mount by their numbers, where no allowed call has one
    for number in (*NUMBERS[machine][6:], CLONE3, 425, 428, 0x4000_0000, 0xFFFF_FFFF):
        assert decide(content, architecture, number) == REFUSE | errno.ENOSYS, number


def test_a_call_by_the_numbers_of_another_processor_ends_the_program() -> None:
    assert decide(assemble_filter("x86_64"), 0x40000003, 11) == KILL
    with pytest.raises(UnknownMachine, match="sparc"):
        assemble_filter("sparc")
