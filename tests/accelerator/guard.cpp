// The parts that a CPU build of torch lacks for tensors with the device "cuda": a device guard, from which `.to("cuda")`
// and the autograd engine get devices, streams and events, and CUDA hooks, which make generators. Nothing here computes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);
c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

// The Mersenne twister of the CPU with the device set to CUDA; CPU kernels refuse it, as they refuse CUDA generators.
struct Twister final : at::CPUGeneratorImpl {
  explicit Twister(uint64_t seed) : at::CPUGeneratorImpl(seed) { device_ = kDevice; }
};

}  // namespace

namespace at {  // required by the registry

struct PretendHooks final : CUDAHooksInterface {
  explicit PretendHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(DeviceIndex) const override {}
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<Twister>(default_rng_seed_val); }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    static const Generator generator = make_generator<Twister>(default_rng_seed_val);
    return generator;
  }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, PretendHooks)

}  // namespace at

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
