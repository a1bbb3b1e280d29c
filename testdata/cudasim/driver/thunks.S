// Every export of libcuda, in one of the two entry shapes that real drivers have. SHAPE is 535 or 580.
// The x86-64 shapes: 470 to 555 begin cmpl $0x321cba00, x(%rip); je +12; jmp *y(%rip), where the je is taken only in a
// driver that was torn down (it returns 4 then); 580 begins push %rbp; mov %rsp, %rbp. Arguments are left as they came.
#if defined(__x86_64__)
.macro THUNK name
    .p2align 5, 0x90
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
#if SHAPE == 535
    .byte 0x81, 0x3d                 // cmpl $0x321cba00, sim_torn_down(%rip)
    .long sim_torn_down - . - 8
    .long 0x321cba00
    .byte 0x74, 0x0c                 // je, over the jmp and its padding
    .byte 0xff, 0x25                 // jmp *pointer(%rip)
    .long sim_pointer_\name - . - 4
    .byte 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00
    movl $4, %eax
    ret
#else
    push %rbp
    .cfi_adjust_cfa_offset 8
    .byte 0x48, 0x89, 0xe5           // mov %rsp, %rbp, in the encoding compilers choose
    pop %rbp
    .cfi_adjust_cfa_offset -8
    jmp impl_\name
#endif
    .cfi_endproc
    .size \name, . - \name
#if SHAPE == 535
    .pushsection .data.rel.ro, "aw"
sim_pointer_\name: .quad impl_\name
    .popsection
#endif
.endm
#elif defined(__aarch64__)
.macro THUNK name
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    b impl_\name
    .size \name, . - \name
.endm
#else
#error "no entry shape for this machine"
#endif

.macro ALIAS name, target
    .globl \name
    .set \name, \target
    .type \name, %function
.endm

#if SHAPE == 535
#define IF535(x) x
#define IF580(x)
#else
#define IF535(x) x
#define IF580(x) x
#endif

    .data
    .p2align 2
    .type sim_torn_down, %object
    .size sim_torn_down, 4
sim_torn_down: .long 0

    .text
#define X(since, name, cbid) IF##since(THUNK name)
#define A(since, name, cbid, target) IF##since(ALIAS name target)
#include "exports.h"
#undef X
#undef A

// sim_exports: name id order is that of exports.h; 0 where this shape has no such export.
    .section .data.rel.ro, "aw"
    .p2align 3
    .globl sim_exports
    .hidden sim_exports
    .type sim_exports, %object
sim_exports:
#if SHAPE == 535
#define X580(name) .quad 0
#else
#define X580(name) .quad name
#endif
#define X535(name) .quad name
#define X(since, name, cbid) X##since(name)
#define A(since, name, cbid, target)
#include "exports.h"
    .size sim_exports, . - sim_exports
    .section .note.GNU-stack, "", %progbits
