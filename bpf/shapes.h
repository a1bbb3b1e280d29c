/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Lays out a call's arguments in an event, as event.h says for each call_shape.
 * The structures are those of the public cuda.h and driver_types.h; their layouts
 * are the same in CUDA 11.8, 12.9 and 13.
 *
 * Neither these functions nor any other uprobe program may use more than 48 bytes of
 * BPF stack. From 64 bytes on, kernels since 6.13 use one stack per CPU; a uprobe
 * program that is preempted by another thread running it on the same CPU then has its
 * stack overwritten (seen on 7.2: arguments of one thread in events of another). So
 * everything is written in place, in a ring record or in task storage.
 */
#ifndef INFERSCOPE_SHAPES_H
#define INFERSCOPE_SHAPES_H

#include "params.h"
#include "event.h"

/*
 * The destination, an event or a frame. Both end in args; the rest is filled later and
 * is scratch space until then.
 */
struct place {
	union {
		__u64 scratch[8];
		struct {
			__u64 head[4];
			__u64 args[4];
		};
	};
};

/* The common start of CUlaunchConfig and cudaLaunchConfig_t. */
struct launch_config {
	__u32 grid[3];
	__u32 block[3];
	__u64 shared; /* u32 and padding in CUlaunchConfig, size_t in cudaLaunchConfig_t */
	__u64 stream;
};

/* One side of CUDA_MEMCPY2D_v2 and CUDA_MEMCPY3D_v2, from its memory type on. */
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
	__u64 size[2]; /* width in bytes, height */
};

/* CUDA_MEMCPY3D_v2, and CUDA_MEMCPY3D_PEER with contexts in the reserved fields */
struct copy_3d {
	__u64 src_x, src_y, src_z, src_lod;
	struct copy_side src;
	__u64 src_context, src_pitch, src_height;
	__u64 dst_x, dst_y, dst_z, dst_lod;
	struct copy_side dst;
	__u64 dst_context, dst_pitch, dst_height;
	__u64 size[3]; /* width in bytes, height, depth */
};

_Static_assert(sizeof(struct place) == sizeof(struct event), "a place is an event");
_Static_assert(__builtin_offsetof(struct place, args) == __builtin_offsetof(struct event, args), "a place is an event");
_Static_assert(sizeof(struct launch_config) == 40, "hStream ends at 40");
_Static_assert(sizeof(struct copy_2d) == 128, "CUDA_MEMCPY2D_v2");
_Static_assert(sizeof(struct copy_3d) == 200, "CUDA_MEMCPY3D_v2");

/*
 * The buffer of parameters that NCCL 2.22 and newer launch with: ncclDevKernelArgs and the first ncclDevWorkBatch
 * (src/include/device.h), without the pointer that it begins with. internal/cuda knows the functions by their index.
 */
struct nccl_args {
	__u64 channels; /* a bit for each; the grid has a block for each */
	__u32 storage, mask;
	__u64 work;
	__u32 batch; /* the function's index in the upper 15 bits */
	__u32 pad;
};

_Static_assert(sizeof(struct nccl_args) == 32, "fits into the head of a place");

#define NCCL_STORAGES 3 /* enum ncclDevWorkStorageType */

/* CUmemorytype; 2 is the device. */
#define MEMORY_HOST 1
#define MEMORY_ARRAY 3
#define MEMORY_UNIFIED 4

/* enum cudaMemcpyKind: 0 H2H, 1 H2D, 2 D2H, 3 D2D, 4 the pointers decide. */
#define COPY_DEFAULT 4ULL

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

/* The following lay out args and return EVENT_FAULT or 0. */

static __always_inline __u8 lay_launch(struct pt_regs *ctx, struct place *p)
{
	__u64 *stack = p->scratch; /* the parameters after those in registers, up to the ninth */
	__u32 z, shared;
	__u8 flags = 0;

	if (read_stack_params(ctx, stack, (9 - PARAM_REGS) * 8)) {
		stack[0] = stack[1] = stack[2] = 0;
		flags = EVENT_FAULT;
	}
#if PARAM_REGS == 6
	z = stack[0];
	shared = stack[1];
#else
	z = PARAM7(ctx);
	shared = PARAM8(ctx);
#endif
	p->args[0] = PARAM1(ctx);
	p->args[1] = stack[8 - PARAM_REGS];
	p->args[2] = pack_grid(PARAM2(ctx), PARAM3(ctx), PARAM4(ctx));
	p->args[3] = pack_block(PARAM5(ctx), PARAM6(ctx), z, shared);
	return flags;
}

/* A dim3 passed by value takes two registers: x and y in the first, z in the second. */
static __always_inline __u8 lay_rt_launch(struct pt_regs *ctx, struct place *p)
{
	__u64 *tail = p->scratch; /* shared memory, stream: the seventh and eighth */
	__u8 flags = 0;

#if PARAM_REGS == 6
	if (read_stack_params(ctx, tail, 16)) {
		tail[0] = tail[1] = 0;
		flags = EVENT_FAULT;
	}
#else
	tail[0] = PARAM7(ctx);
	tail[1] = PARAM8(ctx);
#endif
	p->args[0] = PARAM1(ctx);
	p->args[1] = tail[1];
	p->args[2] = pack_grid(PARAM2(ctx), PARAM2(ctx) >> 32, PARAM3(ctx));
	p->args[3] = pack_block(PARAM4(ctx), PARAM4(ctx) >> 32, PARAM5(ctx), tail[0]);
	return flags;
}

static __always_inline __u8 lay_launch_config(struct pt_regs *ctx, struct place *p)
{
	struct launch_config *c = (void *)p->scratch;
	__u64 stream;
	__u8 flags = 0;

	if (bpf_probe_read_user(c, sizeof(*c), (void *)PARAM1(ctx))) {
		__builtin_memset(c, 0, sizeof(*c));
		flags = EVENT_FAULT;
	}
	stream = c->stream; /* args begin where it ends */
	p->args[0] = PARAM2(ctx);
	p->args[1] = stream;
	p->args[2] = pack_grid(c->grid[0], c->grid[1], c->grid[2]);
	p->args[3] = pack_block(c->block[0], c->block[1], c->block[2], c->shared);
	return flags;
}

static __always_inline __u32 ones(__u64 v)
{
	v -= v >> 1 & 0x5555555555555555ULL;
	v = (v & 0x3333333333333333ULL) + (v >> 2 & 0x3333333333333333ULL);
	v = v + (v >> 4) & 0x0f0f0f0f0f0f0f0fULL;
	return v * 0x0101010101010101ULL >> 56;
}

/*
 * Adds which function of NCCL a launch with a buffer of parameters begins with, and returns EVENT_NCCL; 0 where the
 * buffer is not NCCL's: its mask has not as many channels as the grid has blocks.
 */
static __noinline __u8 lay_nccl(struct place *p, __u64 extra)
{
	__u64 *list = p ? p->head : NULL; /* CU_LAUNCH_PARAM_BUFFER_POINTER (1), buffer, _SIZE (2), address of the size */
	struct nccl_args *a = (void *)list;

	if (!list || bpf_probe_read_user(list, 32, (void *)extra) || list[0] != 1 || list[2] != 2)
		return 0;
	if (bpf_probe_read_user(a, sizeof(*a) - 4, (void *)(list[1] + 8)))
		return 0;
	if (p->args[2] != pack_grid(ones(a->channels), 1, 1) || a->storage >= NCCL_STORAGES || p->args[1] >> 48)
		return 0;
	p->args[1] |= (__u64)(a->batch >> 17) << 48;
	return EVENT_NCCL;
}

/* Returns the address of one side of a copy; for an array, its handle. */
static __always_inline __u64 side_address(const struct copy_side *s)
{
	if (s->type == MEMORY_HOST)
		return s->host;
	return s->type == MEMORY_ARRAY ? s->array : s->device;
}

/* Byte offsets of the parts of a copy descriptor, and the number of its dimensions. */
struct copy_layout {
	__u16 src, dst, size, dimensions;
};

#define COPY_LAYOUT(type)                                                                  \
	((struct copy_layout){ __builtin_offsetof(type, src), __builtin_offsetof(type, dst),   \
			       __builtin_offsetof(type, size), sizeof(((type *)0)->size) / 8 })

/*
 * A descriptor is larger than the place, so its parts are read one after another. Not
 * inlined: its variables would add to the stack of the hot path.
 */
static __noinline __u8 lay_copy(struct place *p, __u64 at, __u64 stream, struct copy_layout d)
{
	struct copy_side *side = (void *)p->scratch;
	__u64 *size = p->scratch;
	__u64 kind;
	__u32 type;

	if (!p)
		return 0;
	if (bpf_probe_read_user(side, sizeof(*side), (void *)(at + d.src)))
		goto fault;
	type = side->type;
	kind = type == MEMORY_HOST ? 0 : 2;
	p->args[1] = side_address(side);
	if (bpf_probe_read_user(side, sizeof(*side), (void *)(at + d.dst)))
		goto fault;
	kind |= side->type == MEMORY_HOST ? 0 : 1;
	if (type == MEMORY_UNIFIED || side->type == MEMORY_UNIFIED)
		kind = COPY_DEFAULT;
	p->args[0] = side_address(side);
	size[2] = 1;
	if (bpf_probe_read_user(size, d.dimensions == 3 ? 24 : 16, (void *)(at + d.size)))
		goto fault;
	p->args[2] = size[0] * size[1] * size[2];
	p->args[3] = (stream & ~(0xffULL << 56)) | kind << 56;
	return 0;
fault:
	p->args[0] = p->args[1] = p->args[2] = 0;
	p->args[3] = (stream & ~(0xffULL << 56)) | COPY_DEFAULT << 56;
	return EVENT_FAULT;
}

/* Returns the register parameter that sel selects; 0 for none and for parameters on the stack. */
static __always_inline __u64 selected(const __u64 *regs, __u32 sel)
{
	return sel && sel <= PARAM_REGS ? regs[(sel - 1) & 7] : 0;
}

/* Reports whether one of the cookie's five selectors is 7 or more: its highest bit is
 * set, or all lower ones are. */
static __always_inline bool selects_high(__u64 cookie)
{
	__u64 sels = cookie >> 16 & 0xfffff;

	return ((sels & 0x77777) + 0x11111 | sels) & 0x88888;
}

static __always_inline __u8 lay_params(struct pt_regs *ctx, __u64 cookie, struct place *p, __u32 *aux)
{
	__u64 *regs = p->scratch;
	__u64 a, b, c, d;
	__u8 flags = 0;

	param_regs(ctx, regs);
	a = selected(regs, COOKIE_SEL(cookie, 0));
	b = selected(regs, COOKIE_SEL(cookie, 1));
	c = selected(regs, COOKIE_SEL(cookie, 2));
	d = selected(regs, COOKIE_SEL(cookie, 3));
	*aux = selected(regs, COOKIE_AUX(cookie));
	p->args[0] = a;
	p->args[1] = b;
	p->args[2] = c;
	p->args[3] = d;
	if (!selects_high(cookie))
		return 0;
	for (int i = 0; i < 4; i++) {
		__u32 sel = COOKIE_SEL(cookie, i);

		if (sel > PARAM_REGS && read_stack_param(ctx, &p->args[i], sel))
			flags = EVENT_FAULT; /* the helper zeroed it */
	}
	if (COOKIE_AUX(cookie) > PARAM_REGS) {
		if (read_stack_param(ctx, &p->head[0], COOKIE_AUX(cookie)))
			flags = EVENT_FAULT;
		*aux = p->head[0];
	}
	return flags;
}

static __always_inline __u8 lay(struct pt_regs *ctx, __u64 cookie, struct place *p, __u32 *aux)
{
	/* The fourth selector is set for asynchronous copies, which have a stream. */
	__u64 stream = COOKIE_SEL(cookie, 3) ? PARAM2(ctx) : 0;
	__u8 flags;

	*aux = 0;
	switch (COOKIE_SHAPE(cookie)) {
	case SHAPE_LAUNCH:
		return lay_launch(ctx, p);
	case SHAPE_LAUNCH_EX:
		flags = lay_launch_config(ctx, p);
		/* Programs pass single parameters (the third), NCCL a buffer (the fourth). */
		if (!PARAM3(ctx) && PARAM4(ctx))
			flags |= lay_nccl(p, PARAM4(ctx));
		return flags;
	case SHAPE_RT_LAUNCH_EX:
		return lay_launch_config(ctx, p);
	case SHAPE_RT_LAUNCH:
		return lay_rt_launch(ctx, p);
	case SHAPE_COPY_2D:
		return lay_copy(p, PARAM1(ctx), stream, COPY_LAYOUT(struct copy_2d));
	case SHAPE_COPY_3D:
		return lay_copy(p, PARAM1(ctx), stream, COPY_LAYOUT(struct copy_3d));
	}
	return lay_params(ctx, cookie, p, aux);
}

#endif
