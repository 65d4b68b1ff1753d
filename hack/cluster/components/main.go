// One program that is every part of the local test cluster. Which part it is
// follows from the name it was started by, or from its first argument:
//
//	ln -s components kube-apiserver && ./kube-apiserver --version
//	./components kube-apiserver --version
//
// Where no container registry and no release downloads can be reached, a Go
// module proxy is enough to build it. One program instead of seven: the parts
// share most of their code, so it is built and linked once (126 MB, not 500).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// server runs a component whose whole interface is a cobra command.
func server(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

var components = map[string]func() int{
	"kube-apiserver":          server(apiserver.NewAPIServerCommand),
	"kube-controller-manager": server(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          server(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              server(proxy.NewProxyCommand),
	"kubelet":                 server(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	// kubectl reports its errors itself, in its own words.
	"kubectl": func() int {
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := components[name]
	if !known && len(os.Args) > 1 {
		// Called by its own name: the component reads os.Args as if it had
		// been started alone.
		name = os.Args[1]
		if run, known = components[name]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		names := make([]string, 0, len(components))
		for n := range components {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "%s is none of this program's components.\nName one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}
