-- Health of a Task, for Argo CD.
local health = { status = "Progressing", message = "The controller has not looked at it yet." }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
for _, condition in ipairs(status.conditions) do
  if condition.type == "Failed" and condition.status == "True" then
    return { status = "Degraded", message = condition.message }
  end
  if condition.type == "Complete" and condition.status == "True" then
    return { status = "Healthy", message = condition.message }
  end
  if condition.type == "Suspended" and condition.status == "True" then
    return { status = "Suspended", message = condition.message }
  end
end
for _, condition in ipairs(status.conditions) do
  health.message = condition.message
end
return health
