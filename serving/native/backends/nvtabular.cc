// Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`. A run is so cheap that joining requests
// would cost more than it saves, so each request runs alone.
#include "triton/workflow.h"

namespace rankline {

const BackendTraits kBackend = {"the workflow", false};

void OpenBackend(const std::map<std::string, std::string>&) {}

std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step) { return LoadWorkflow(step); }

}  // namespace rankline
