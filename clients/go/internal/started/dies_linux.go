package started

import (
	"os/exec"
	"syscall"
)

// diesWithUs has the process end with this one, however that ends.
func diesWithUs(process *exec.Cmd) {
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
