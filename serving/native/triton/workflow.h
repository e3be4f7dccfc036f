// Serves steps with a compiled workflow at `<version>/plan`.
#ifndef RANKLINE_TRITON_WORKFLOW_H_
#define RANKLINE_TRITON_WORKFLOW_H_

#include <memory>

#include "triton/backend.h"

namespace rankline {

// Loads a step with only a workflow. Throws ArtifactError if it is missing or damaged, or does not fit the config.
std::unique_ptr<LoadedModel> LoadWorkflow(const ModelInfo& step);

// Loads a model with the given inputs and outputs.
using Load = std::unique_ptr<LoadedModel> (*)(const ModelInfo&);

// Loads a step with a model, after its workflow if it has one; the workflow's outputs are then the model's inputs.
//
// Throws the exceptions of `load`, and ArtifactError like LoadWorkflow.
std::unique_ptr<LoadedModel> LoadBehindWorkflow(const ModelInfo& step, Load load);

}  // namespace rankline

#endif  // RANKLINE_TRITON_WORKFLOW_H_
