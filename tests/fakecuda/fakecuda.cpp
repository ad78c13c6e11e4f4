// A pretended CUDA device for a CPU build of torch. Tensors say device "cuda:i"; their memory is the host's and every
// kernel runs by the CPU fallback. What a real device would refuse is refused: tensors of several devices in one
// operation. Kernels, reads that wait for the device, copies and memory are counted.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

// ---- what is counted ------------------------------------------------------------------------------------------------

using Table = std::map<std::string, int64_t>;

std::mutex lock;
Table kernels;  // by operator
Table waits;    // reads that wait for the device, by operator
Table mixed;    // 0-dim CPU tensors and CPU indices beside device tensors, by operator
int64_t to_device = 0, to_device_blocking = 0, to_device_bytes = 0, to_host = 0, to_host_bytes = 0;
int64_t live = 0, peak = 0;  // bytes of all pretended cards together

void count(Table& table, const std::string& name) {
  std::lock_guard<std::mutex> held(lock);
  table[name]++;
}

void count_memory(int64_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  live += bytes;
  if (live > peak) peak = live;
}

// ---- devices --------------------------------------------------------------------------------------------------------

std::atomic<int> n_devices{2};
thread_local int current = 0;
thread_local bool inside = false;  // within an operator: what it calls in turn is not counted

void make_current(c10::Device device) {
  if (!device.has_index()) return;
  TORCH_CHECK(device.index() >= 0 && device.index() < n_devices, "CUDA error: invalid device ordinal");
  current = device.index();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device getDevice() const override { return c10::Device(c10::DeviceType::CUDA, current); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    make_current(device);
    return before;
  }
  void setDevice(c10::Device device) const override { make_current(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(n_devices.load()); }

  // One stream, on which everything is done at once.
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct OnDevice {  // makes a device the current one within a scope
  int before;
  explicit OnDevice(std::optional<c10::Device> device) : before(current) {
    if (device.has_value()) make_current(*device);
  }
  ~OnDevice() { current = before; }
};

// ---- memory ---------------------------------------------------------------------------------------------------------

struct Block {
  void* memory;
  size_t size;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  count_memory(-static_cast<int64_t>(block->size));
  c10::free_cpu(block->memory);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* memory = size ? c10::alloc_cpu(size) : nullptr;
    count_memory(static_cast<int64_t>(size));
    return {memory, new Block{memory, size}, &release, c10::Device(c10::DeviceType::CUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override { memcpy(to, from, n); }
};
Memory memory;
const bool allocator_is_set = (c10::SetAllocator(c10::DeviceType::CUDA, &memory), true);

// ---- operators written by hand --------------------------------------------------------------------------------------

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice on(device);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  OnDevice on(device);
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor seen_from_host(const at::Tensor& t) {
  if (!t.is_cuda()) return t;
  auto options = at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU);
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), options);
}

void count_copy(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  std::lock_guard<std::mutex> held(lock);
  const int64_t bytes = from.numel() * from.element_size();
  if (!to.is_cuda()) {
    to_host++;
    to_host_bytes += bytes;
    waits["copy_ to the host"]++;
  } else if (!from.is_cuda()) {
    to_device++;
    to_device_bytes += bytes;
    to_device_blocking += !non_blocking;
  } else {
    kernels["copy_"]++;
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!inside) count_copy(self, source, non_blocking);
  if (self.numel()) seen_from_host(self).copy_(seen_from_host(source), false);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  return copy_(const_cast<at::Tensor&>(target), self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (self.sizes() != target.sizes()) at::native::resize_(target, self.sizes(), std::nullopt);
  return copy_(const_cast<at::Tensor&>(target), self, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (!inside) count(waits, "item");
  return seen_from_host(self).item();
}

void grow(const at::Tensor& self, int64_t bytes) {
  auto storage = self.storage();
  if (static_cast<int64_t>(storage.nbytes()) >= bytes) return;
  auto fresh = memory.allocate(bytes);
  if (storage.nbytes()) memcpy(fresh.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  int64_t wanted = 1;
  for (auto length : size) wanted *= length;
  grow(self, (wanted + self.storage_offset()) * self.element_size());
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

// ---- every other operator: checked, counted, done on the CPU --------------------------------------------------------

// The size of the result is known only when the device has computed it.
const std::set<std::string> WAITING = {
    "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::equal",
    "aten::masked_select", "aten::nonzero", "aten::repeat_interleave.Tensor"};
const std::set<std::string> TAKES_CPU_INDEX = {
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index.Tensor"};

std::string name_of(const c10::OperatorHandle& op) {
  auto name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::vector<at::Tensor> tensors_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  auto add = [&](const at::Tensor& t) { if (t.defined()) found.push_back(t); };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); i++) {
    const auto& value = stack[i];
    if (value.isTensor()) add(value.toTensor());
    else if (value.isTensorList()) for (const at::Tensor t : value.toTensorList()) add(t);
    else if (value.isOptionalTensorList())
      for (const std::optional<at::Tensor> t : value.toOptionalTensorList()) if (t.has_value()) add(*t);
  }
  return found;
}

std::optional<c10::Device> common_device(const std::string& name, const std::vector<at::Tensor>& tensors) {
  std::optional<c10::Device> device;
  for (const auto& t : tensors) {
    if (!t.is_cuda()) continue;
    TORCH_CHECK(!device.has_value() || *device == t.device(), name,
                ": Expected all tensors to be on the same device, but found ", device->str(), " and ", t.device().str());
    device = t.device();
  }
  return device;
}

void check_host_tensor(const std::string& name, const at::Tensor& t, const c10::Device& device) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) return;
  if (t.dim() == 0) {
    count(mixed, name + " with a 0-dim CPU tensor");
  } else if (TAKES_CPU_INDEX.count(name)) {
    count(mixed, name + " with a CPU index (blocking copy)");
    count(waits, name + " (CPU index)");
  } else {
    TORCH_CHECK(false, name, ": Expected all tensors to be on the same device, but found at least two devices, ",
                device.str(), " and cpu!");
  }
}

void check_devices(const c10::OperatorHandle& op, const std::string& name, const torch::jit::Stack& stack) {
  const auto tensors = tensors_of(op, stack);
  const auto device = common_device(name, tensors);
  if (!device.has_value()) return;
  for (const auto& t : tensors) if (!t.is_cuda()) check_host_tensor(name, t, *device);
}

struct Inside {
  bool before = inside;
  Inside() { inside = true; }
  ~Inside() { inside = before; }
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!inside) {
    const auto name = name_of(op);
    check_devices(op, name, *stack);
    count(kernels, name);
    if (WAITING.count(name)) count(waits, name);
  }
  Inside within;
  at::native::cpu_fallback(op, stack);
}

// ---- hooks: what torch asks about CUDA ------------------------------------------------------------------------------

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  std::string showConfig() const override { return "pretended CUDA"; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(n_devices.load()); }
  int getNumGPUs() const override { return n_devices; }
  c10::DeviceIndex current_device() const override { return static_cast<c10::DeviceIndex>(current); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current); }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = current;
    if (device >= 0) current = device;
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void*) const override { return false; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  at::Allocator* getCUDADeviceAllocator() const override { return &memory; }
  at::Device getDeviceFromPtr(void*) const override { return at::Device(c10::DeviceType::CUDA, current); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};
}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// ---- for Python -----------------------------------------------------------------------------------------------------

namespace {
std::string as_json(const Table& table) {
  std::ostringstream out;
  const char* between = "";
  for (const auto& [name, n] : table) {
    out << between << "\"" << name << "\": " << n;
    between = ", ";
  }
  return "{" + out.str() + "}";
}
}  // namespace

extern "C" {
void fakecuda_devices(int n) { n_devices = n; }
int fakecuda_current() { return current; }
void fakecuda_set(int device) { current = device; }
int64_t fakecuda_live() { return live; }
int64_t fakecuda_peak() { return peak; }

void fakecuda_reset() {
  std::lock_guard<std::mutex> held(lock);
  kernels.clear();
  waits.clear();
  mixed.clear();
  to_device = to_device_blocking = to_device_bytes = to_host = to_host_bytes = 0;
  peak = live;
}

const char* fakecuda_report() {
  static std::string text;
  std::lock_guard<std::mutex> held(lock);
  std::ostringstream out;
  out << "{\"kernels\": " << as_json(kernels) << ", \"waits\": " << as_json(waits) << ", \"mixed\": " << as_json(mixed)
      << ", \"to_device\": " << to_device << ", \"to_device_blocking\": " << to_device_blocking
      << ", \"to_device_bytes\": " << to_device_bytes << ", \"to_host\": " << to_host
      << ", \"to_host_bytes\": " << to_host_bytes << ", \"peak\": " << peak << ", \"live\": " << live << "}";
  text = out.str();
  return text.c_str();
}
}
