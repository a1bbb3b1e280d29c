/* Functions of no use but for what is said of their frames. */
	.text
	.globl plain, by_expression, in_register, value, interrupted, first, null_return
plain:
	.cfi_startproc
	nop
	.cfi_remember_state
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbp, 0
	nop
	.cfi_restore_state
	nop
	.cfi_endproc

by_expression: /* the CFA is what rbp - 8 points to */
	.cfi_startproc
	.cfi_escape 0x0f, 3, 0x76, 0x78, 0x06
	nop
	.cfi_endproc

in_register: /* returns to where rbx says */
	.cfi_startproc
	.cfi_def_cfa %rsp, 0
	.cfi_register %rip, %rbx
	nop
	.cfi_endproc

value: /* rbx was the CFA - 8 */
	.cfi_startproc
	.cfi_val_offset %rbx, -8
	nop
	.cfi_endproc

interrupted:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa_offset 16
	nop
	.cfi_endproc

first:
	.cfi_startproc
	.cfi_undefined %rip
	nop
	.cfi_endproc

null_return:
	.cfi_startproc
	nop
	.cfi_endproc

untold:
	nop
	.section .note.GNU-stack,"",@progbits
