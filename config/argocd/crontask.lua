-- Health of a CronTask, for Argo CD.
local health = { status = "Progressing", message = "The controller has not looked at it yet." }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  health.message = "The controller has not seen the last change yet."
  return health
end
for _, condition in ipairs(status.conditions) do
  if condition.type == "Stalled" and condition.status == "True" then
    return { status = "Degraded", message = condition.message }
  end
end
if status.reason == "Suspended" then
  return { status = "Suspended", message = "It is suspended on purpose." }
end
for _, condition in ipairs(status.conditions) do
  if condition.type == "Ready" then
    if condition.status == "True" then
      return { status = "Healthy", message = condition.message }
    end
    health.message = condition.message
  end
end
return health
