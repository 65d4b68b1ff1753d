{{/* Labels of everything; the argument is (dict "root" $ "component" NAME). */}}
{{- define "skyward.labels" -}}
app.kubernetes.io/name: skyward
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that select Pods: they may never change, so no version is among them. */}}
{{- define "skyward.selector" -}}
app.kubernetes.io/name: skyward
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "skyward.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the restricted Pod Security Standard asks of a container. */}}
{{- define "skyward.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What it asks of a Pod; 65532 is the image's user. */}}
{{- define "skyward.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The accounts that may write records and statuses: the operator's and the exempt ones. */}}
{{- define "skyward.trusted" -}}
{{- $users := list (printf "system:serviceaccount:%s:skyward-controller" .Release.Namespace) -}}
{{- $groups := list -}}
{{- range (.Values.admissionPolicy | default dict).exempt -}}
{{- if eq .kind "Group" }}{{ $groups = append $groups .name }}
{{- else if eq .kind "ServiceAccount" }}{{ $users = append $users (printf "system:serviceaccount:%s:%s" .namespace .name) }}
{{- else }}{{ $users = append $users .name }}
{{- end -}}
{{- end -}}
- name: trusted
  expression: >-
    request.userInfo.username in {{ toJson $users }}
    {{- if $groups }} ||
    (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in {{ toJson $groups }}))
    {{- end }}
{{- end }}

{{/* The accounts that read Providers and Offers, as the subjects of a binding; nothing where the list is
empty. Values of an older chart have no such list: then it is the default. */}}
{{- define "skyward.catalogueReaders" -}}
{{- $readers := .Values.rbac.catalogueReaders -}}
{{- if kindIs "invalid" $readers }}{{ $readers = list (dict "kind" "Group" "name" "system:authenticated") }}{{ end -}}
{{- range $readers }}
{{- if eq .kind "ServiceAccount" }}
- {kind: ServiceAccount, name: {{ .name | quote }}, namespace: {{ .namespace | quote }}}
{{- else }}
- {apiGroup: rbac.authorization.k8s.io, kind: {{ .kind }}, name: {{ .name | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* A bare level speaks of us, and keeps libraries quiet. */}}
{{- define "skyward.logFilter" -}}
{{- if has .Values.logLevel (list "error" "warn" "info" "debug" "trace") -}}
{{ .Values.logLevel }},kube_client=warn,kube_runtime=warn,russh=warn,tower=warn,hyper=warn,h2=warn
{{- else -}}
{{ .Values.logLevel }}
{{- end -}}
{{- end }}

{{/* An upgrade that reuses the values of an older chart lacks the values that are new since: a missing
value means its default in values.yaml. This is a switch whose default is true; the result is text,
empty for no. */}}
{{- define "skyward.yes" -}}
{{- if or (kindIs "invalid" .) . }}yes{{ end -}}
{{- end }}
{{- define "skyward.storeQuota" -}}
{{ .Values.store.quotaPerNamespace | default "20%" }}
{{- end }}
{{- define "skyward.storeHold" -}}
{{ .Values.store.holdFor | default "1h" }}
{{- end }}
{{- define "skyward.storeBucket" -}}
{{- (.Values.store.bucket | default dict).url | default "" -}}
{{- end }}

{{/* What a JSON schema could only refuse with a regular expression. */}}
{{- define "skyward.checkValues" -}}
{{- with .Values.store.hostPath -}}
{{- if not (hasPrefix "/" .) }}{{ fail (printf "store.hostPath is %q; it must be an absolute path, such as /var/lib/skyward" .) }}{{ end -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" .Values.store.size) -}}
{{- fail (printf "store.size is %q; it must be an amount such as 10Gi" .Values.store.size) -}}
{{- end -}}
{{- $bucket := .Values.store.bucket | default dict -}}
{{- with $bucket.url -}}
{{- if not (regexMatch "^(s3|gs)://[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/?$|^az://[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+/?$" .) -}}
{{- fail (printf "store.bucket.url is %q; it must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX, where the prefix may be left out" .) -}}
{{- end -}}
{{- end -}}
{{- with $bucket.endpoint -}}
{{- if not (regexMatch "^https?://[^/]" .) -}}
{{- fail (printf "store.bucket.endpoint is %q; it must be a URL, such as https://minio.example" .) -}}
{{- end -}}
{{- end -}}
{{- if and (not $bucket.url) (or $bucket.region $bucket.endpoint $bucket.credentialsSecret) -}}
{{- fail "store.bucket has settings and no url; set store.bucket.url, such as s3://my-bucket/skyward" -}}
{{- end -}}
{{- $quota := include "skyward.storeQuota" . -}}
{{- if not (regexMatch "^([0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)|([1-9][0-9]?|100)%)$" $quota) -}}
{{- fail (printf "store.quotaPerNamespace is %q; it must be an amount such as 2Gi, or a part of the volume such as 20%%" $quota) -}}
{{- end -}}
{{- $hold := include "skyward.storeHold" . -}}
{{- if not (regexMatch "^[1-9][0-9]*(s|m|h)$" $hold) -}}
{{- fail (printf "store.holdFor is %q; it must be a duration such as 1h or 30m" $hold) -}}
{{- end -}}
{{- $lease := .Values.controller.leaseDuration -}}
{{- if not (regexMatch "^([1-9][0-9]*m|[1-9][0-9]+s|[3-9]s)$" $lease) -}}
{{- fail (printf "controller.leaseDuration is %q; it must be a duration of at least 3s, such as 15s or 1m" $lease) -}}
{{- end -}}
{{- if not (regexMatch "^[1-9][0-9]*(s|m)$" .Values.metrics.serviceMonitor.interval) -}}
{{- fail (printf "metrics.serviceMonitor.interval is %q; it must be a duration such as 30s or 1m" .Values.metrics.serviceMonitor.interval) -}}
{{- end -}}
{{- range $name, $_ := .Values.providers -}}
{{- if or (gt (len $name) 253) (not (regexMatch "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "providers has the name %q; a Provider's name is made of small letters, digits, - and ., such as local or aws-prod" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Exactly one place for the store, or one line that says what to do. */}}
{{- define "skyward.checkStore" -}}
{{- $places := 0 -}}
{{- range list .Values.store.storageClass .Values.store.existingClaim .Values.store.hostPath (include "skyward.storeBucket" .) -}}
{{- if . }}{{ $places = add1 $places }}{{ end -}}
{{- end -}}
{{- if eq (int $places) 0 -}}
{{- fail "logs and results need a place: set store.storageClass (\"default\" for the cluster's default class), store.existingClaim, store.bucket.url, or, on a cluster of one node, store.hostPath" -}}
{{- else if gt (int $places) 1 -}}
{{- fail "logs and results have one place: set only one of store.storageClass, store.existingClaim, store.hostPath and store.bucket.url" -}}
{{- end -}}
{{- end }}

{{/* The cluster has what the volume is made from, or one line says what to do. `helm template` and a
dry run of the client ask no cluster: a list is then without items. A refused question ends Helm, and
no template can prevent that; store.check=false asks nothing. */}}
{{- define "skyward.checkVolume" -}}
{{- $namespace := .Release.Namespace -}}
{{- $claim := .Values.store.existingClaim -}}
{{- $class := .Values.store.storageClass -}}
{{- if and .Values.store.check $claim -}}
{{- $claims := lookup "v1" "PersistentVolumeClaim" $namespace "" -}}
{{- $found := not (hasKey $claims "items") -}}
{{- range $claims.items -}}
{{- if eq .metadata.name $claim }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "there is no PersistentVolumeClaim %q (store.existingClaim) in the namespace %q: make it first" $claim $namespace) -}}
{{- end -}}
{{- end -}}
{{- /* A claim that an earlier release left is taken over as it is. */ -}}
{{- if and .Values.store.check $class (not (lookup "v1" "PersistentVolumeClaim" $namespace "skyward-store")) -}}
{{- $named := ternary "" $class (eq $class "default") -}}
{{- $classes := lookup "storage.k8s.io/v1" "StorageClass" "" "" -}}
{{- $found := not (hasKey $classes "items") -}}
{{- range $classes.items -}}
{{- if $named -}}
{{- if eq .metadata.name $named }}{{ $found = true }}{{ end -}}
{{- else -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- range list "storageclass.kubernetes.io/is-default-class" "storageclass.beta.kubernetes.io/is-default-class" -}}
{{- if eq (get $annotations .) "true" }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- /* Volumes made by hand need no StorageClass, only its name, or none. */ -}}
{{- range (lookup "v1" "PersistentVolume" "" "").items -}}
{{- $for := .spec.claimRef | default (dict "namespace" $namespace "name" "skyward-store") -}}
{{- if and (eq (.spec.storageClassName | default "") $named) (eq $for.namespace $namespace) (eq $for.name "skyward-store") -}}
{{- $found = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "this cluster has no %s (store.storageClass=%s): name one that 'kubectl get storageclass' lists, or set store.existingClaim or, on a cluster of one node, store.hostPath" (ternary (printf "StorageClass %q" $class) "default StorageClass" (ne $named "")) $class) -}}
{{- end -}}
{{- end -}}
{{- end }}
