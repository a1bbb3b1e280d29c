/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Lays out a call's arguments in an event, as event.h says for each call_shape.
 * The structures are those of the public cuda.h and driver_types.h; their layouts
 * are the same in CUDA 11.8, 12.9 and 13.
 */
#ifndef INFERSCOPE_SHAPES_H
#define INFERSCOPE_SHAPES_H

#include "params.h"
#include "event.h"

/* The common start of CUlaunchConfig and cudaLaunchConfig_t. */
struct launch_config {
	__u32 grid[3];
	__u32 block[3];
	__u64 shared; /* u32 and padding in CUlaunchConfig, size_t in cudaLaunchConfig_t */
	__u64 stream;
};

/* One side of CUDA_MEMCPY2D_v2, from its memory type on. */
struct copy_side {
	__u32 type; /* CUmemorytype */
	__u32 pad;
	__u64 host;
	__u64 device;
	__u64 array;
};

/* CUDA_MEMCPY2D_v2 */
struct copy_2d {
	__u64 src_x, src_y;
	struct copy_side src;
	__u64 src_pitch;
	__u64 dst_x, dst_y;
	struct copy_side dst;
	__u64 dst_pitch;
	__u64 width, height;
};

/* CUDA_MEMCPY3D_v2, and CUDA_MEMCPY3D_PEER with contexts in the reserved fields */
struct copy_3d {
	__u64 src_x, src_y, src_z, src_lod;
	struct copy_side src;
	__u64 src_context, src_pitch, src_height;
	__u64 dst_x, dst_y, dst_z, dst_lod;
	struct copy_side dst;
	__u64 dst_context, dst_pitch, dst_height;
	__u64 width, height, depth;
};

_Static_assert(sizeof(struct launch_config) == 40, "hStream ends at 40");
_Static_assert(sizeof(struct copy_2d) == 128, "CUDA_MEMCPY2D_v2");
_Static_assert(sizeof(struct copy_3d) == 200, "CUDA_MEMCPY3D_v2");

/* CUmemorytype: the others are 2 (device) and 3 (array), both on the device. */
#define MEMORY_HOST 1
#define MEMORY_UNIFIED 4

/* enum cudaMemcpyKind: 0 H2H, 1 H2D, 2 D2H, 3 D2D, 4 the pointers decide. */
#define COPY_DEFAULT 4

static __always_inline __u64 atmost(__u64 v, __u64 max)
{
	return v < max ? v : max;
}

static __always_inline __u64 pack_grid(__u32 x, __u32 y, __u32 z)
{
	return x | atmost(y, 0xffff) << 32 | atmost(z, 0xffff) << 48;
}

static __always_inline __u64 pack_block(__u32 x, __u32 y, __u32 z, __u32 shared)
{
	return atmost(x, 2047) | atmost(y, 2047) << 11 | atmost(z, 1023) << 22 | (__u64)shared << 32;
}

/*
 * Each of the following fills args straight in the event or the frame: a copy on the
 * stack in between costs 7% of an empty probe. It returns EVENT_FAULT or 0.
 */

static __always_inline __u8 lay_launch(struct pt_regs *ctx, __u64 *args)
{
	__u64 stack[9 - PARAM_REGS]; /* the parameters after those in registers, up to the ninth */
	__u8 flags = 0;
	__u32 z, shared;

	if (bpf_probe_read_user(stack, sizeof(stack), (void *)PARAM_STACK(ctx))) {
		__builtin_memset(stack, 0, sizeof(stack));
		flags = EVENT_FAULT;
	}
#if PARAM_REGS == 6
	z = stack[0];
	shared = stack[1];
#else
	z = PARAM7(ctx);
	shared = PARAM8(ctx);
#endif
	args[0] = PARAM1(ctx);
	args[1] = stack[8 - PARAM_REGS];
	args[2] = pack_grid(PARAM2(ctx), PARAM3(ctx), PARAM4(ctx));
	args[3] = pack_block(PARAM5(ctx), PARAM6(ctx), z, shared);
	return flags;
}

/* A dim3 by value takes two registers: x and y in the first, z in the second. */
static __always_inline __u8 lay_rt_launch(struct pt_regs *ctx, __u64 *args)
{
	__u64 tail[2]; /* shared memory, stream: the seventh and eighth */
	__u8 flags = 0;

#if PARAM_REGS == 6
	if (bpf_probe_read_user(tail, sizeof(tail), (void *)PARAM_STACK(ctx))) {
		__builtin_memset(tail, 0, sizeof(tail));
		flags = EVENT_FAULT;
	}
#else
	tail[0] = PARAM7(ctx);
	tail[1] = PARAM8(ctx);
#endif
	args[0] = PARAM1(ctx);
	args[1] = tail[1];
	args[2] = pack_grid(PARAM2(ctx), PARAM2(ctx) >> 32, PARAM3(ctx));
	args[3] = pack_block(PARAM4(ctx), PARAM4(ctx) >> 32, PARAM5(ctx), tail[0]);
	return flags;
}

static __always_inline __u8 lay_launch_config(struct pt_regs *ctx, __u64 *args)
{
	struct launch_config c;
	__u8 flags = 0;

	if (bpf_probe_read_user(&c, sizeof(c), (void *)PARAM1(ctx))) {
		__builtin_memset(&c, 0, sizeof(c));
		flags = EVENT_FAULT;
	}
	args[0] = PARAM2(ctx);
	args[1] = c.stream;
	args[2] = pack_grid(c.grid[0], c.grid[1], c.grid[2]);
	args[3] = pack_block(c.block[0], c.block[1], c.block[2], c.shared);
	return flags;
}

/* The address of a copy's side; an array is its handle. */
static __always_inline __u64 side_address(struct copy_side *s)
{
	if (s->type == MEMORY_HOST)
		return s->host;
	return s->type == 3 ? s->array : s->device;
}

static __always_inline __u64 copy_kind(struct copy_side *dst, struct copy_side *src)
{
	if (dst->type == MEMORY_UNIFIED || src->type == MEMORY_UNIFIED)
		return COPY_DEFAULT;
	return (src->type == MEMORY_HOST ? 0 : 2) | (dst->type == MEMORY_HOST ? 0 : 1);
}

static __always_inline void lay_copy(__u64 *args, struct copy_side *dst, struct copy_side *src,
				     __u64 bytes, __u64 stream)
{
	args[0] = side_address(dst);
	args[1] = side_address(src);
	args[2] = bytes;
	args[3] = (stream & ~(0xffULL << 56)) | copy_kind(dst, src) << 56;
}

/* The stream is a parameter of the asynchronous copies only: the fourth selector names it. */
static __always_inline __u64 copy_stream(struct pt_regs *ctx, __u64 cookie)
{
	return COOKIE_SEL(cookie, 3) ? PARAM2(ctx) : 0;
}

static __always_inline __u8 lay_copy_2d(struct pt_regs *ctx, __u64 cookie, __u64 *args)
{
	struct copy_2d c;
	__u8 flags = 0;

	if (bpf_probe_read_user(&c, sizeof(c), (void *)PARAM1(ctx))) {
		__builtin_memset(&c, 0, sizeof(c));
		c.src.type = MEMORY_UNIFIED;
		flags = EVENT_FAULT;
	}
	lay_copy(args, &c.dst, &c.src, c.width * c.height, copy_stream(ctx, cookie));
	return flags;
}

static __always_inline __u8 lay_copy_3d(struct pt_regs *ctx, __u64 cookie, __u64 *args)
{
	struct copy_3d c;
	__u8 flags = 0;

	if (bpf_probe_read_user(&c, sizeof(c), (void *)PARAM1(ctx))) {
		__builtin_memset(&c, 0, sizeof(c));
		c.src.type = MEMORY_UNIFIED;
		flags = EVENT_FAULT;
	}
	lay_copy(args, &c.dst, &c.src, c.width * c.height * c.depth, copy_stream(ctx, cookie));
	return flags;
}

/* The highest parameter that the cookie's selectors name. */
static __always_inline __u32 last_param(__u64 cookie)
{
	__u32 last = COOKIE_AUX(cookie);

	for (int i = 0; i < 4; i++) {
		__u32 sel = COOKIE_SEL(cookie, i);

		if (sel > last)
			last = sel;
	}
	return last;
}

static __always_inline __u8 lay_params(struct pt_regs *ctx, __u64 cookie, __u64 *args, __u32 *aux)
{
	__u64 p[PARAMS] = {};
	__u32 last = last_param(cookie);
	__u8 flags = 0;

	params_regs(ctx, p);
	if (last > PARAM_REGS && params_stack(ctx, p, last))
		flags = EVENT_FAULT; /* the helper zeroed what it could not read */
	for (int i = 0; i < 4; i++)
		args[i] = p[COOKIE_SEL(cookie, i)];
	*aux = p[COOKIE_AUX(cookie)];
	return flags;
}

static __always_inline __u8 lay(struct pt_regs *ctx, __u64 cookie, __u64 *args, __u32 *aux)
{
	*aux = 0;
	switch (COOKIE_SHAPE(cookie)) {
	case SHAPE_LAUNCH:
		return lay_launch(ctx, args);
	case SHAPE_LAUNCH_EX:
	case SHAPE_RT_LAUNCH_EX:
		return lay_launch_config(ctx, args);
	case SHAPE_RT_LAUNCH:
		return lay_rt_launch(ctx, args);
	case SHAPE_COPY_2D:
		return lay_copy_2d(ctx, cookie, args);
	case SHAPE_COPY_3D:
		return lay_copy_3d(ctx, cookie, args);
	}
	return lay_params(ctx, cookie, args, aux);
}

#endif
