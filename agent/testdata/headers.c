/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the agent's declarations of CUPTI (src/cupti.h) with the real headers of one version. KERNEL, COPY,
 * SET, SYNC, OVERHEAD are that version's newest structures; headers_test.go defines them.
 */
#include <cuda.h>
#include <cupti.h>
#include <stddef.h>
#include "../abi.h"
#include "../src/cupti.h"

#define SAME(theirs, field, ours, mine)                                                       \
	_Static_assert(offsetof(theirs, field) == offsetof(struct ours, mine), #ours "." #mine); \
	_Static_assert(sizeof(((theirs *)0)->field) == sizeof(((struct ours *)0)->mine), #ours "." #mine " size")
#define STARTS(theirs, field, ours, mine) _Static_assert(offsetof(theirs, field) == offsetof(struct ours, mine), #ours "." #mine)
#define FITS(theirs, ours) _Static_assert(sizeof(theirs) >= sizeof(struct ours), #ours " is a prefix")
#define IS(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #ours)

FITS(KERNEL, kernel_record);
SAME(KERNEL, kind, kernel_record, kind);
SAME(KERNEL, registersPerThread, kernel_record, registers);
SAME(KERNEL, start, kernel_record, start);
SAME(KERNEL, end, kernel_record, end);
SAME(KERNEL, deviceId, kernel_record, device);
SAME(KERNEL, contextId, kernel_record, context);
SAME(KERNEL, streamId, kernel_record, stream);
STARTS(KERNEL, gridX, kernel_record, grid);
STARTS(KERNEL, gridZ, kernel_record, grid[2]);
STARTS(KERNEL, blockX, kernel_record, block);
STARTS(KERNEL, blockZ, kernel_record, block[2]);
SAME(KERNEL, staticSharedMemory, kernel_record, static_shared);
SAME(KERNEL, dynamicSharedMemory, kernel_record, dynamic_shared);
SAME(KERNEL, localMemoryPerThread, kernel_record, local);
SAME(KERNEL, correlationId, kernel_record, correlation);
SAME(KERNEL, name, kernel_record, name);
SAME(KERNEL, graphNodeId, kernel_record, graph_node);
SAME(KERNEL, graphId, kernel_record, graph);

FITS(COPY, copy_record);
SAME(COPY, copyKind, copy_record, copy);
SAME(COPY, srcKind, copy_record, source);
SAME(COPY, dstKind, copy_record, destination);
SAME(COPY, flags, copy_record, flags);
SAME(COPY, bytes, copy_record, bytes);
SAME(COPY, start, copy_record, start);
SAME(COPY, end, copy_record, end);
SAME(COPY, deviceId, copy_record, device);
SAME(COPY, contextId, copy_record, context);
SAME(COPY, streamId, copy_record, stream);
SAME(COPY, correlationId, copy_record, correlation);
SAME(COPY, graphNodeId, copy_record, graph_node);
SAME(COPY, graphId, copy_record, graph);

FITS(CUpti_ActivityMemcpyPtoP4, peer_record);
SAME(CUpti_ActivityMemcpyPtoP4, copyKind, peer_record, copy);
SAME(CUpti_ActivityMemcpyPtoP4, flags, peer_record, flags);
SAME(CUpti_ActivityMemcpyPtoP4, bytes, peer_record, bytes);
SAME(CUpti_ActivityMemcpyPtoP4, start, peer_record, start);
SAME(CUpti_ActivityMemcpyPtoP4, deviceId, peer_record, device);
SAME(CUpti_ActivityMemcpyPtoP4, streamId, peer_record, stream);
SAME(CUpti_ActivityMemcpyPtoP4, srcDeviceId, peer_record, source_device);
SAME(CUpti_ActivityMemcpyPtoP4, dstDeviceId, peer_record, destination_device);
SAME(CUpti_ActivityMemcpyPtoP4, correlationId, peer_record, correlation);
SAME(CUpti_ActivityMemcpyPtoP4, graphNodeId, peer_record, graph_node);
SAME(CUpti_ActivityMemcpyPtoP4, graphId, peer_record, graph);

FITS(SET, set_record);
SAME(SET, value, set_record, value);
SAME(SET, bytes, set_record, bytes);
SAME(SET, start, set_record, start);
SAME(SET, end, set_record, end);
SAME(SET, deviceId, set_record, device);
SAME(SET, contextId, set_record, context);
SAME(SET, streamId, set_record, stream);
SAME(SET, correlationId, set_record, correlation);
SAME(SET, flags, set_record, flags);
SAME(SET, memoryKind, set_record, memory);
SAME(SET, graphNodeId, set_record, graph_node);
SAME(SET, graphId, set_record, graph);

FITS(SYNC, sync_record);
SAME(SYNC, type, sync_record, type);
SAME(SYNC, start, sync_record, start);
SAME(SYNC, end, sync_record, end);
SAME(SYNC, correlationId, sync_record, correlation);
SAME(SYNC, contextId, sync_record, context);
SAME(SYNC, streamId, sync_record, stream);
SAME(SYNC, cudaEventId, sync_record, event);

SAME(OVERHEAD, overheadKind, overhead_record, overhead);
SAME(OVERHEAD, objectKind, overhead_record, object);
SAME(OVERHEAD, objectId.pt.threadId, overhead_record, thread);
SAME(OVERHEAD, start, overhead_record, start);
SAME(OVERHEAD, end, overhead_record, end);
#ifdef OVERHEAD_DATA
SAME(OVERHEAD, correlationId, overhead_record, correlation);
SAME(OVERHEAD, overheadData, overhead_record, data);
_Static_assert(sizeof(OVERHEAD) == sizeof(struct overhead_record), "overhead_record is whole");
#else
_Static_assert(sizeof(OVERHEAD) == offsetof(struct overhead_record, correlation), "overhead_record ends there");
#endif

FITS(CUpti_ActivityMarker2, marker_record);
SAME(CUpti_ActivityMarker2, flags, marker_record, flags);
SAME(CUpti_ActivityMarker2, timestamp, marker_record, time);
SAME(CUpti_ActivityMarker2, id, marker_record, id);
SAME(CUpti_ActivityMarker2, objectKind, marker_record, object);
SAME(CUpti_ActivityMarker2, objectId.pt.threadId, marker_record, thread);
SAME(CUpti_ActivityMarker2, name, marker_record, name);

SAME(CUpti_CallbackData, callbackSite, callback_data, site);
SAME(CUpti_CallbackData, functionParams, callback_data, params);
SAME(CUpti_CallbackData, functionReturnValue, callback_data, result);
SAME(CUpti_CallbackData, contextUid, callback_data, context_id);
SAME(CUpti_CallbackData, correlationData, callback_data, kept);
SAME(CUpti_CallbackData, correlationId, callback_data, correlation);

#ifdef CUpti_SubscriberParams_STRUCT_SIZE /* CUPTI 13.3 and later */
FITS(CUpti_SubscriberParams, subscriber_params);
SAME(CUpti_SubscriberParams, structSize, subscriber_params, size);
SAME(CUpti_SubscriberParams, subscriberName, subscriber_params, name);
SAME(CUpti_SubscriberParams, oldSubscriberName, subscriber_params, holder);
SAME(CUpti_SubscriberParams, oldSubscriberSize, subscriber_params, holder_size);
SAME(CUpti_SubscriberParams, allowMultipleSubscribers, subscriber_params, several);
_Static_assert(CUpti_SubscriberParams_STRUCT_SIZE == sizeof(struct subscriber_params), "the size that CUPTI is told");
_Static_assert(CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN <= AGENT_HOLDER, "room for a whole name");
#endif

#define LAUNCH(type)                                    \
	SAME(type, f, launch_params, function);         \
	STARTS(type, gridDimX, launch_params, grid);    \
	STARTS(type, blockDimX, launch_params, block);  \
	STARTS(type, blockDimZ, launch_params, block[2]); \
	SAME(type, sharedMemBytes, launch_params, shared); \
	SAME(type, hStream, launch_params, stream)
LAUNCH(cuLaunchKernel_params);
LAUNCH(cuLaunchKernel_ptsz_params);
LAUNCH(cuLaunchCooperativeKernel_params);
LAUNCH(cuLaunchCooperativeKernel_ptsz_params);
SAME(cuLaunchKernelEx_params, config, launch_ex_params, config);
SAME(cuLaunchKernelEx_params, f, launch_ex_params, function);
SAME(cuLaunchKernelEx_ptsz_params, f, launch_ex_params, function);
STARTS(CUlaunchConfig, gridDimX, launch_config, grid);
STARTS(CUlaunchConfig, blockDimZ, launch_config, block[2]);
SAME(CUlaunchConfig, sharedMemBytes, launch_config, shared);
SAME(CUlaunchConfig, hStream, launch_config, stream);

/* Parameters that calls.c reads as words: the n-th one at 8 * n. */
#define WORD(type, field, n) _Static_assert(offsetof(type, field) == 8 * (n) && sizeof(((type *)0)->field) == 8, #type "." #field)
WORD(cuGraphLaunch_params, hStream, 1);
WORD(cuGraphLaunch_ptsz_params, hStream, 1);
WORD(cuMemcpy_params, ByteCount, 2);
WORD(cuMemcpyHtoD_v2_params, ByteCount, 2);
WORD(cuMemcpyDtoH_v2_params, ByteCount, 2);
WORD(cuMemcpyDtoD_v2_params, ByteCount, 2);
WORD(cuMemcpyAsync_params, hStream, 3);
WORD(cuMemcpyHtoDAsync_v2_params, hStream, 3);
WORD(cuMemcpyDtoHAsync_v2_ptsz_params, hStream, 3);
WORD(cuMemcpyPeerAsync_params, srcDevice, 2);
WORD(cuMemcpyPeerAsync_params, ByteCount, 4);
WORD(cuMemcpyPeerAsync_params, hStream, 5);
WORD(cuMemsetD8_v2_params, N, 2);
WORD(cuMemsetD32_v2_params, N, 2);
WORD(cuMemsetD8Async_params, hStream, 3);
WORD(cuMemsetD32Async_ptsz_params, hStream, 3);

IS(CUPTI_ACTIVITY_KIND_MEMCPY, KIND_MEMCPY);
IS(CUPTI_ACTIVITY_KIND_MEMSET, KIND_MEMSET);
IS(CUPTI_ACTIVITY_KIND_KERNEL, KIND_KERNEL);
IS(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, KIND_CONCURRENT_KERNEL);
IS(CUPTI_ACTIVITY_KIND_MARKER, KIND_MARKER);
IS(CUPTI_ACTIVITY_KIND_OVERHEAD, KIND_OVERHEAD);
IS(CUPTI_ACTIVITY_KIND_MEMCPY2, KIND_MEMCPY_PEER);
IS(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, KIND_SYNCHRONIZATION);
IS(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, FLUSH_FORCED);
IS(CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC, COPY_ASYNC);
IS(CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, MARKER_INSTANT);
IS(CUPTI_ACTIVITY_FLAG_MARKER_START, MARKER_START);
IS(CUPTI_ACTIVITY_FLAG_MARKER_END, MARKER_END);
IS(CUPTI_ACTIVITY_OBJECT_THREAD, OBJECT_THREAD);
IS(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM, THREAD_ID_SYSTEM);
IS(CUPTI_CB_DOMAIN_DRIVER_API, DOMAIN_DRIVER);
IS(CUPTI_API_ENTER, SITE_ENTER);
IS(CUPTI_API_EXIT, SITE_EXIT);
IS(CUPTI_SUCCESS, CUPTI_OK);
IS(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, CUPTI_MULTIPLE_SUBSCRIBERS);
IS(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ATTRIBUTE_SMS);
IS(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, ATTRIBUTE_MEMORY_KHZ);
IS(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, ATTRIBUTE_MEMORY_BITS);
IS(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ATTRIBUTE_MAJOR);
IS(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ATTRIBUTE_MINOR);

/* The functions: an assignment between types that are not the same is an error (-Werror). */
struct cupti functions(void)
{
	return (struct cupti){
		.disable = (int (*)(uint32_t))(CUptiResult(*)(CUpti_ActivityKind))cuptiActivityDisable,
		.buffers = (int (*)(request_function, complete_function))(CUptiResult(*)(
		    CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc))cuptiActivityRegisterCallbacks,
		.dropped = (int (*)(void *, uint32_t, size_t *))(
		    CUptiResult(*)(CUcontext, uint32_t, size_t *))cuptiActivityGetNumDroppedRecords,
		.next = (int (*)(uint8_t *, size_t, void **))(
		    CUptiResult(*)(uint8_t *, size_t, CUpti_Activity **))cuptiActivityGetNextRecord,
		.callback = (int (*)(uint32_t, void *, uint32_t, uint32_t))(CUptiResult(*)(
		    uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId))cuptiEnableCallback,
	};
}

CALLBACK_IDS
