"""Assemble the seccomp filter of sandboxes: the system calls that programs need, and no other.

Everything else fails as if the kernel did not have it, so that libraries take the older way. Some calls depend on their
arguments: processes but no namespaces, sockets of this machine's own kind, and TCP if there is a proxy, no input pushed
into terminals, no switch of the address layout, no file that runs as its owner or group, and no change of the limit
that keeps the host from looking at crashes.
"""

import errno
import platform
import struct
from typing import Final

# Numbers on x86-64 and on arm64; None where a machine never had the call.
_ALLOWED: Final[dict[str, tuple[int, int | None]]] = {
    "accept": (43, 202), "accept4": (288, 242), "access": (21, None), "alarm": (37, None), "arch_prctl": (158, None),
    "bind": (49, 200), "brk": (12, 214), "capget": (125, 90), "capset": (126, 91), "chdir": (80, 49),
    "chown": (92, None), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "close": (3, 57), "close_range": (436, 436), "connect": (42, 203),
    "copy_file_range": (326, 285), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "epoll_wait": (232, None), "eventfd": (284, None), "eventfd2": (290, 19),
    "execve": (59, 221), "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fadvise64": (221, 223), "fallocate": (285, 47), "fchdir": (81, 50),
    "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25),
    "fdatasync": (75, 83), "fgetxattr": (193, 10), "flistxattr": (196, 13), "flock": (73, 32), "fork": (57, None),
    "fremovexattr": (199, 16), "fsetxattr": (190, 7), "fstat": (5, 80), "fstatfs": (138, 44), "fsync": (74, 82),
    "ftruncate": (77, 46), "futex": (202, 98), "futex_requeue": (456, 456), "futex_wait": (455, 455),
    "futex_waitv": (449, 449), "futex_wake": (454, 454), "futimesat": (261, None), "get_robust_list": (274, 100),
    "getcpu": (309, 168), "getcwd": (79, 17), "getdents": (78, None), "getdents64": (217, 61), "getegid": (108, 177),
    "geteuid": (107, 175), "getgid": (104, 176), "getgroups": (115, 158), "getitimer": (36, 102),
    "getpeername": (52, 205), "getpgid": (121, 155), "getpgrp": (111, None), "getpid": (39, 172),
    "getppid": (110, 173), "getpriority": (140, 141), "getrandom": (318, 278), "getresgid": (120, 150),
    "getresuid": (118, 148), "getrlimit": (97, 163), "getrusage": (98, 165), "getsid": (124, 156),
    "getsockname": (51, 204), "getsockopt": (55, 209), "gettid": (186, 178), "gettimeofday": (96, 169),
    "getuid": (102, 174), "getxattr": (191, 8), "inotify_add_watch": (254, 27), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "inotify_rm_watch": (255, 28), "ioprio_get": (252, 31), "ioprio_set": (251, 30),
    "kill": (62, 129), "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446), "lchown": (94, None), "lgetxattr": (192, 9), "link": (86, None),
    "linkat": (265, 37), "listen": (50, 201), "listxattr": (194, 11), "llistxattr": (195, 12),
    "lremovexattr": (198, 15), "lseek": (8, 62), "lsetxattr": (189, 6), "lstat": (6, None), "madvise": (28, 233),
    "membarrier": (324, 283), "memfd_create": (319, 279), "mincore": (27, 232), "mkdir": (83, None),
    "mkdirat": (258, 34), "mlock": (149, 228), "mlock2": (325, 284),
    "mlockall": (151, 230), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216), "msync": (26, 227),
    "munlock": (150, 229), "munlockall": (152, 231), "munmap": (11, 215), "nanosleep": (35, 101),
    "newfstatat": (262, 79), "pause": (34, None),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pipe": (22, None), "pipe2": (293, 59),
    "pkey_alloc": (330, 289), "pkey_free": (331, 290), "pkey_mprotect": (329, 288), "poll": (7, None),
    "ppoll": (271, 73), "prctl": (157, 167), "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286),
    "pselect6": (270, 72), "pwrite64": (18, 68), "pwritev": (296, 70),
    "pwritev2": (328, 287), "read": (0, 63), "readahead": (187, 213), "readlink": (89, None), "readlinkat": (267, 78),
    "readv": (19, 65), "recvfrom": (45, 207), "recvmmsg": (299, 243), "recvmsg": (47, 212), "removexattr": (197, 14),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "restart_syscall": (219, 128),
    "rmdir": (84, None), "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigpending": (127, 136),
    "rt_sigprocmask": (14, 135), "rt_sigqueueinfo": (129, 138), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "rt_tgsigqueueinfo": (297, 240),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "sched_getaffinity": (204, 123),
    "sched_getattr": (315, 275), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_rr_get_interval": (148, 127), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_yield": (24, 124), "seccomp": (317, 277),
    "select": (23, None), "sendfile": (40, 71), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setfsgid": (123, 152), "setfsuid": (122, 151),
    "setgid": (106, 144), "setgroups": (116, 159), "setitimer": (38, 103), "setpgid": (109, 154),
    "setpriority": (141, 140), "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147),
    "setreuid": (113, 145), "setsid": (112, 157), "setsockopt": (54, 208),
    "setuid": (105, 146), "setxattr": (188, 5), "shutdown": (48, 210), "sigaltstack": (131, 132),
    "signalfd": (282, None), "signalfd4": (289, 74), "splice": (275, 76), "stat": (4, None),
    "statfs": (137, 43), "statx": (332, 291), "symlink": (88, None), "symlinkat": (266, 36), "sync": (162, 81),
    "sync_file_range": (277, 84), "syncfs": (306, 267), "sysinfo": (99, 179), "tee": (276, 77), "tgkill": (234, 131),
    "time": (201, None), "timer_create": (222, 107), "timer_delete": (226, 111), "timer_getoverrun": (225, 109),
    "timer_gettime": (224, 108), "timer_settime": (223, 110), "timerfd_create": (283, 85),
    "timerfd_gettime": (287, 87), "timerfd_settime": (286, 86), "times": (100, 153), "tkill": (200, 130),
    "truncate": (76, 45), "umask": (95, 166), "uname": (63, 160), "unlink": (87, None), "unlinkat": (263, 35),
    "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None), "vfork": (58, None), "wait4": (61, 260),
    "waitid": (247, 95), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
# Calls that give a file its mode, and which argument that is; opening one has its flags before.
_CHANGE_MODE: Final = {
    "chmod": ((90, None), 1), "fchmod": ((91, 52), 1), "fchmodat": ((268, 53), 2), "fchmodat2": ((452, 452), 2),
    "creat": ((85, None), 1), "mknod": ((133, None), 1), "mknodat": ((259, 33), 2),
}  # fmt: skip
_OPEN: Final = {"open": ((2, None), 2), "openat": ((257, 56), 3)}
_SET_LIMIT: Final = {"setrlimit": ((160, 164), 0), "prlimit64": ((302, 261), 1)}
_CLONE: Final = (56, 220)
_SOCKETS: Final = ((41, 198), (53, 199))
_IOCTL: Final = (16, 29)
_PERSONALITY: Final = (135, 92)

# The audit architectures of machines, and their column above.
_MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Calls of the x32 interface of x86-64 have this bit.
_X32_BIT: Final = 0x4000_0000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NAMESPACE_FLAGS: Final = 0x7E02_0080
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_TYPE_MASK, _IPPROTO_TCP = 1, 0xF, 6
_SET_ID_BITS: Final = 0o6000
# O_CREAT and O_TMPFILE: without them, the mode is whatever is there.
_MAKE_BITS: Final = 0o20000100
_RLIMIT_CORE: Final = 4
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_READ_PERSONALITY: Final = 0xFFFF_FFFF

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_MASK: Final = 0x54
_ALLOW, _KILL_PROCESS, _PRETEND = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NOT_THERE, _NOT_PERMITTED = 0x0005_0000 | errno.ENOSYS, 0x0005_0000 | errno.EPERM


class UnknownMachine(Exception):
    """There is no list of system calls for this kind of processor."""


def assemble_filter(machine: str | None = None, *, has_proxy: bool = False) -> bytes:
    """Assemble the filter for a machine, by default this one, as the kernel reads it.

    A program that has a proxy makes internet sockets; its network namespace is what they do not leave.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise UnknownMachine(f"there is no list of system calls for the processor {machine}")
    architecture, column = _MACHINES[machine]
    program = [
        _encode(_LOAD, _ARCHITECTURE_OFFSET),
        _encode(_JUMP_EQUAL, architecture, 1, 0),
        _encode(_RETURN, _KILL_PROCESS),
        _encode(_LOAD, _NUMBER_OFFSET),
        _encode(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _encode(_RETURN, _NOT_THERE),
    ]
    for numbers in _ALLOWED.values():
        number = numbers[column]
        if number is not None:
            program += [_encode(_JUMP_EQUAL, number, 0, 1), _encode(_RETURN, _ALLOW)]
    program += _check_argument(_CLONE[column], 0, [(_JUMP_BITS, _NAMESPACE_FLAGS)], allow_matches=False)
    for numbers_of_sockets in _SOCKETS:
        program += _check_socket(numbers_of_sockets[column], has_proxy=has_proxy)
    for numbers, argument in _CHANGE_MODE.values():
        program += _check_argument(numbers[column], argument, [(_JUMP_BITS, _SET_ID_BITS)], allow_matches=False)
    for numbers, argument in _OPEN.values():
        program += _check_open(numbers[column], argument)
    for numbers, argument in _SET_LIMIT.values():
        # It is told that it has: there is no crash of it that anybody looks at, which is what programs want with it.
        program += _check_limit(numbers[column], argument)
    commands = [(_JUMP_EQUAL, each) for each in (_TIOCSTI, _TIOCLINUX, _TIOCSETD)]
    program += _check_argument(_IOCTL[column], 1, commands, allow_matches=False)
    layouts = [(_JUMP_EQUAL, each) for each in (0, _READ_PERSONALITY)]
    program += _check_argument(_PERSONALITY[column], 0, layouts, allow_matches=True)
    # That includes clone3: its flags are behind a pointer, which no filter can follow; libraries then use clone.
    return b"".join((*program, _encode(_RETURN, _NOT_THERE)))


def _check_argument(
    number: int | None, argument: int, tests: list[tuple[int, int]], *, allow_matches: bool
) -> list[bytes]:
    """Encode: if it is this call, compare the lower half of an argument, and allow it or not.

    The kernel reads only the lower half of these arguments.
    """
    count = len(tests)
    matched, other = (_ALLOW, _NOT_PERMITTED) if allow_matches else (_NOT_PERMITTED, _ALLOW)
    return _for_call(number, [
        _load(argument),
        *(_encode(code, value, count - index, 0) for index, (code, value) in enumerate(tests)),
        _encode(_RETURN, other),
        _encode(_RETURN, matched),
    ])  # fmt: skip


def _check_open(number: int | None, mode: int) -> list[bytes]:
    """Encode: if it is this call, and makes a file, allow it only without the bits that let it run as its owner."""
    return _for_call(number, [
        _load(mode - 1),
        _encode(_JUMP_BITS, _MAKE_BITS, 1, 0),
        _encode(_RETURN, _ALLOW),
        _load(mode),
        _encode(_JUMP_BITS, _SET_ID_BITS, 1, 0),
        _encode(_RETURN, _ALLOW),
        _encode(_RETURN, _NOT_PERMITTED),
    ])  # fmt: skip


def _check_limit(number: int | None, argument: int) -> list[bytes]:
    """Encode: if it is this call, and changes the limit of crashes, tell the program that it did, and do nothing.

    No crash of it is looked at anyway, which is what programs want with it.
    """
    is_new = _ARGUMENTS_OFFSET + 8 * (argument + 1)
    return _for_call(number, [
        _load(argument),
        _encode(_JUMP_EQUAL, _RLIMIT_CORE, 1, 0),
        _encode(_RETURN, _ALLOW),
        # A pointer, in two halves; without one, the limit is only read.
        _encode(_LOAD, is_new),
        _encode(_JUMP_EQUAL, 0, 0, 3),
        _encode(_LOAD, is_new + 4),
        _encode(_JUMP_EQUAL, 0, 0, 1),
        _encode(_RETURN, _ALLOW),
        _encode(_RETURN, _PRETEND),
    ])  # fmt: skip


def _check_socket(number: int, *, has_proxy: bool) -> list[bytes]:
    """Encode: if it is this call, allow sockets of this machine's own kind, and with a proxy TCP."""
    if not has_proxy:
        return _check_argument(number, 0, [(_JUMP_EQUAL, _AF_UNIX)], allow_matches=True)
    return _for_call(number, [
        _load(0),
        _encode(_JUMP_EQUAL, _AF_UNIX, 9, 0),
        _encode(_JUMP_EQUAL, _AF_INET, 2, 0),
        _encode(_JUMP_EQUAL, _AF_INET6, 1, 0),
        _encode(_RETURN, _NOT_PERMITTED),
        _load(1),
        _encode(_MASK, _SOCK_TYPE_MASK),
        _encode(_JUMP_EQUAL, _SOCK_STREAM, 0, 4),
        _load(2),
        _encode(_JUMP_EQUAL, 0, 1, 0),
        _encode(_JUMP_EQUAL, _IPPROTO_TCP, 0, 1),
        _encode(_RETURN, _ALLOW),
        _encode(_RETURN, _NOT_PERMITTED),
    ])  # fmt: skip


def _for_call(number: int | None, body: list[bytes]) -> list[bytes]:
    """Encode: run the body, which always ends, if it is this call; no machine has a call without a number."""
    return [] if number is None else [_encode(_JUMP_EQUAL, number, 0, len(body)), *body]


def _load(argument: int) -> bytes:
    return _encode(_LOAD, _ARGUMENTS_OFFSET + 8 * argument)


def _encode(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
