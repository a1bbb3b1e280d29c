// Every export of libcudart begins with a push, like the real ones, and goes on to its implementation with all
// arguments as they came.
#if defined(__x86_64__)
.macro THUNK name
    .p2align 4, 0x90
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    push %rbp
    .cfi_adjust_cfa_offset 8
    .byte 0x48, 0x89, 0xe5           // mov %rsp, %rbp
    pop %rbp
    .cfi_adjust_cfa_offset -8
    jmp rt_\name
    .cfi_endproc
    .size \name, . - \name
.endm
#elif defined(__aarch64__)
.macro THUNK name
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    b rt_\name
    .size \name, . - \name
.endm
#else
#error "no entry shape for this machine"
#endif
    .text
#define X(name) THUNK name
#include "exports.h"
    .section .note.GNU-stack, "", %progbits
