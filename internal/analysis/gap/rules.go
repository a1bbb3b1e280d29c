package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
)

// allRules is the one table of what frames say of the work that a thread is at, and of what it waits
// for. Names are those of CPython 3.8 to 3.14, glibc 2.17 to 2.41, PyTorch 1.13 to 2.11, transformers 4
// and 5.24, diffusers 0.42, vLLM 0.24 and 0.33, SGLang 0.5.23, llama.cpp, tokenizers, sentencepiece, Pillow
// and OpenCV; the kernel's are those of Linux 5.15 to 6.18.
func allRules() []rules { //nolint:funlen // a table
	return []rules{
		{trait: framework, kind: recording.PythonFrame, files: []string{
			"/torch/", "/transformers/models/", "/transformers/generation/", "/transformers/modeling_",
			"/transformers/cache_utils.py", "/timm/models/", "/timm/layers/", "/torchvision/models/",
			"/torchvision/ops/", "/diffusers/models/", "/diffusers/schedulers/", "/transformers/integrations/",
			"/transformers/masking_utils.py", "/transformers/activations.py", "/diffusers/hooks/",
			"/vllm/v1/attention/", "/vllm/v1/sample/", "/vllm/v1/worker/gpu/sample/", "/vllm/models/",
			"/vllm/compilation/", "/vllm/ir/", "/vllm/kernels/",
			"/vllm/vllm_flash_attn/", "/vllm/_custom_ops.py", "/vllm/lora/", "/vllm/forward_context.py",
			"/vllm/v1/cudagraph_dispatcher.py", "/vllm/v1/worker/gpu_ubatch_wrapper.py", "/sglang/srt/layers/",
			"/sglang/srt/models/", "/sglang/srt/model_executor/", "/sglang/srt/compilation/", "/sgl_kernel/",
			"/flashinfer/", "/triton/backends/nvidia/driver.py", "/triton/backends/amd/driver.py",
			"/vllm/model_executor/", "/vllm/attention/", "/accelerate/hooks.py", "/peft/tuners/",
			"/flash_attn/", "/xformers/", "/cupy/", "/jax/", "/triton/runtime/",
			// Code that torch.compile writes launches kernels, from the caches of PyTorch and vLLM.
			"/torchinductor_", "/inductor_cache/", "/torch_compile_cache/",
		}},
		{trait: framework, kind: recording.NativeFrame, files: []string{
			"libtorch", "libc10", "libcuda.so", "libcudart", "libcublas", "libcudnn", "libnccl", "libcufft",
			"libcusparse", "libcusolver", "libcurand", "libnvrtc", "libnvinfer", "libonnxruntime", "libshm",
			"libggml-cuda",
		}, prefixes: []string{"ggml_cuda_", "ggml_backend_cuda_"}},
		{trait: gpuLibrary, kind: recording.NativeFrame, files: []string{
			"libtorch_cuda", "libc10_cuda", "libtorch_hip", "libc10_hip", "libcuda", "libcublas", "libcudnn",
			"libcufft", "libcusparse", "libcusolver", "libcurand", "libnccl", "libnvrtc", "libnvinfer", "libnvshmem",
		}},
		{trait: prints, kind: recording.PythonFrame, files: []string{"/torch/_tensor_str.py"}},
		{trait: computes, kind: recording.NativeFrame, prefixes: []string{
			"at::native::DEFAULT::", "at::native::AVX2::", "at::native::AVX512::", "at::parallel_for",
			"at::TensorIteratorBase::for_each", "at::TensorIteratorBase::serial_for_each",
			"at::internal::invoke_parallel", "mkl_", "dnnl", "cblas_", "sgemm", "dgemm", "mkldnn", "ideep::",
			"fbgemm", "xnn_", "pthreadpool", "ggml_compute_forward", "ggml_vec_dot",
		}, within: []string{
			"dnnl::impl", "at::native::(anonymous namespace)::cpu", "::avx2::", "::avx512::",
		}, files: []string{"libggml-cpu", "libmkl", "libopenblas", "libgomp", "libiomp", "libdnnl"}},
		{trait: importing, kind: recording.PythonFrame, prefixes: []string{"_find_and_load"}},
		{trait: importing, kind: recording.NativeFrame, prefixes: []string{"PyImport_ImportModuleLevelObject"}},
		{trait: handover, kind: recording.PythonFrame, files: []string{"/multiprocessing/connection.py"}},
		{trait: prepares, kind: recording.PythonFrame, files: []string{
			"/tokenizers/", "/transformers/tokenization_", "/transformers/image_",
			"/transformers/feature_extraction_", "/transformers/processing_", "/sentencepiece/", "/tiktoken/",
			"/PIL/", "/cv2/", "/torchvision/transforms/", "/torchvision/io/", "/albumentations/", "/librosa/",
			"/soundfile.py", "/torchaudio/", "/transformers/video_", "/transformers/audio_utils.py",
			"/tokenization_", "/image_processing_", "/feature_extraction_", "/video_processing_",
			"/diffusers/image_processor.py", "/diffusers/video_processor.py", "/vllm/multimodal/",
			"/vllm/renderers/", "/vllm/tokenizers/", "/vllm/inputs/", "/vllm/v1/engine/input_processor.py",
			"/vllm/v1/engine/processor.py", "/vllm/v1/engine/detokenizer.py",
			"/sglang/srt/managers/tokenizer_manager", "/sglang/srt/managers/detokenizer_manager.py",
			"/sglang/srt/multimodal/", "/sglang/srt/managers/async_dynamic_batch_tokenizer.py",
			"/sglang/srt/managers/multimodal_processor.py", "/csv.py", "/regex/", "/re/__init__.py",
			"/re.py", "/sre_", "/html/", "/xml/", "/pandas/",
		}, prefixes: []string{"parse_", "tokeniz"}, within: []string{
			"tokeniz", "preprocess", "decode_image", "decode_jpeg", "resize_image", "load_image",
		}},
		{trait: prepares, kind: recording.NativeFrame, prefixes: []string{
			"jpeg_", "jsimd_", "png_", "ImagingResample", "ImagingJpeg", "cv::resize", "cv::imdecode",
			"cv::hal::", "tokenizers::", "sentencepiece::", "minja::", "common_chat_", "llm_tokenizer", "sre_", "_sre_", "re_Pattern_", "_csv_", "pattern_sub",
			"pattern_search", "pattern_match", "pattern_find", "pattern_split", "parse_", "av_", "avcodec_",
			"sws_",
		}, within: []string{
			"tokeniz", "preprocess", "decode_image", "decode_jpeg", "resize_image", "resize_bilinear",
		}, files: []string{
			"tokenizers.abi3", "tokenizers.cpython", "_sentencepiece", "_tiktoken", "_imaging", "libjpeg",
			"libturbojpeg", "libpng", "libwebp", "cv2.abi3", "cv2.cpython", "libopencv", "_csv.cpython",
			"_regex.cpython", "libavcodec", "libswscale",
		}},
		{
			trait: faults,
			kind:  recording.KernelFrame,
			prefixes: []string{
				"asm_exc_page_fault", "exc_page_fault", "do_user_addr_fault", "handle_mm_fault",
				"do_page_fault", "do_mem_abort", "do_anonymous_page", "clear_page", "clear_huge_page", "el0_da",
				"unmap_", "zap_", "do_vmi_munmap", "__vm_munmap", "do_madvise", "vm_mmap_pgoff", "__do_sys_brk",
			},
		},
		{trait: files, kind: recording.KernelFrame, prefixes: []string{
			"filemap_", "generic_file_", "ext4_", "xfs_", "btrfs_", "ovl_read", "ovl_write", "nfs_", "fuse_",
			"page_cache_", "do_sync_mmap_readahead", "folio_wait_bit", "iomap_", "blkdev_", "submit_bio",
			"vfs_fsync",
		}},
		{trait: device, kind: recording.NativeFrame, prefixes: threads.DeviceMemory()},
		// Of other tools' traces: what PyTorch names itself, and rows of its Python tracer.
		{
			trait:    prepares,
			kind:     recording.PythonFrame,
			prefixes: []string{"enumerate(DataLoader)#_SingleProcessDataLoaderIter"},
		},
		{
			trait:    tracedWait,
			kind:     recording.PythonFrame,
			prefixes: []string{"enumerate(DataLoader)#_MultiProcessingDataLoaderIter", "gloo:"},
		},
		{trait: tracedWait, kind: recording.NativeFrame, prefixes: []string{"<built-in method ", "<method '"}},
		{
			trait:    waitsIn,
			kind:     recording.KernelFrame,
			prefixes: []string{"futex_wait", "__futex_wait", "futex_do_wait"},
		},
		{trait: locks, kind: recording.NativeFrame, prefixes: []string{
			"pthread_mutex_", "__pthread_mutex_", "___pthread_mutex_", "__GI___pthread_mutex_",
			"__lll_lock_wait", "lll_lock_wait", "__lll_mutex_lock", "pthread_rwlock_", "__pthread_rwlock_",
			"pthread_spin_lock", "PyThread_acquire_lock", "lock_PyThread_acquire_lock", "_PyMutex_Lock",
			"PyMutex_Lock", "acquire_timed", "rlock_acquire", "_multiprocessing_SemLock_acquire",
			"semlock_acquire", "std::mutex::lock", "std::unique_lock",
		}},
		{trait: awaits, kind: recording.NativeFrame, prefixes: []string{
			"pthread_cond_", "__pthread_cond_", "___pthread_cond_", "pthread_join", "__pthread_clockjoin",
			"__pthread_timedjoin", "pthread_barrier_", "__pthread_barrier", "gomp_", "__kmp",
			"std::condition_variable", "std::thread::join",
		}},
		{
			trait: awaits,
			kind:  recording.PythonFrame,
			files: []string{
				"/queue.py", "/multiprocessing/queues.py", "/multiprocessing/connection.py",
				"/concurrent/futures/", "/multiprocessing/pool.py", "/asyncio/", "/threading.py",
			},
			prefixes: []string{"wait"},
		},
		{trait: awaits, kind: recording.PythonFrame, within: []string{"condition.wait", "event.wait", "barrier.wait"}},
	}
}
