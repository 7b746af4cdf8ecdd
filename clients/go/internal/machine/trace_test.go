package machine

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The traces that the Rust machine has written in the simulation: this one answers the same.
func TestTraces(t *testing.T) {
	files := []string{"../../../traces/golden.txt"}
	if more := os.Getenv("RLOCK_TRACES"); more != "" {
		found, err := filepath.Glob(more)
		if err != nil || len(found) == 0 {
			t.Fatal("RLOCK_TRACES names no file: ", more, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		opened, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		count := replay(t, bufio.NewScanner(opened))
		if count == 0 {
			t.Fatal("no traces in ", file)
		}
		t.Log(count, " traces of ", file)
	}
}

type stepper interface {
	Step(now Ms, in Input) []Output
}

func replay(t *testing.T, lines *bufio.Scanner) (count int) {
	lines.Buffer(nil, 1<<20)
	var title string
	var machine stepper
	var server *Server
	var patience Ms
	for lines.Scan() {
		text := lines.Text()
		words := strings.Fields(text)
		switch {
		case len(words) == 0 || words[0] == "#" || words[0] == "end":
			continue
		case words[0] == "trace":
			count, title = count+1, text
			machine, server, patience = begun(words)
			continue
		}
		now, said, told := number(words[0]), strings.SplitN(text, " -> ", 2)[0], []string(nil)
		input := words[1 : strings.Count(said, " ")+1]
		switch {
		case machine != nil:
			for _, out := range machine.Step(now, read(input)) {
				told = append(told, out.text())
			}
		case input[0] == "heard": // here a request that nobody answers closes all that are idle
			continue
		case server != nil:
			told = server.told(now, input)
		default:
			told = []string{come(now, input, patience)}
		}
		answer := strings.Join(told, "; ")
		if answer == "" {
			answer = "-"
		}
		if answer = said + " -> " + answer; answer != text {
			t.Fatalf("%s\nexpected: %s\nanswered: %s", title, text, answer)
		}
	}
	return count
}

func begun(words []string) (stepper, *Server, Ms) {
	value := map[string]Ms{}
	for _, word := range words[3:] {
		name, text, _ := strings.Cut(word, "=")
		value[name] = number(text)
	}
	is := func(name string) bool { return value[name] == 1 }
	switch words[2] {
	case "attempt":
		return NewAttempt(Ask{
			Wait: value["wait"], Patience: value["patience"], Lease: value["lease"], Depth: int(value["depth"]),
			Below: value["below"], AsksFirst: is("first"), Session: is("session"), HasMaxQueue: is("maxqueue"),
			HasAcks: is("acks"),
		}), nil, 0
	case "release":
		return NewRelease(Level{
			Patience: value["patience"], Lease: value["lease"], Depth: int(value["depth"]), Token: value["token"],
			Deadline: value["deadline"], Lingers: is("lingers"),
		}), nil, 0
	case "hold":
		return NewHold(Kept{
			Token: value["token"], Lease: value["lease"], Sent: value["sent"], Margin: value["margin"],
			HasAcks: is("acks"), Renews: is("renews"),
		}), nil, 0
	case "server":
		return nil, &Server{}, 0
	}
	return nil, nil, value["patience"]
}

func number(text string) Ms {
	if text == "forever" {
		return Forever
	}
	number, _ := strconv.ParseInt(text, 10, 64)
	return number
}

var endings = map[string]Ending{"token": Token, "nil": Nil, "refused": Refused, "unsent": Unsent, "broken": Broken, "silent": Silent}

var events = map[string]Event{
	"call": Call, "slot": Slot, "opened": Opened, "place": Place, "listening": Listening, "turn": Turn, "time": Time,
	"taken": Taken, "cancel": Cancel, "close": Close, "ended": Untied, "seat": Seat, "releasing": Releasing,
	"released": Released, "gone": Gone, "extend": Extend,
}

func read(words []string) Input {
	in := Input{Event: Ended}
	if words[0] == "own" {
		in.Event, words = Own, words[1:]
	}
	last := words[len(words)-1]
	if event, is := events[words[0]]; is {
		return Input{Event: event, Yes: len(words) > 1 && words[1] == "yes", IsUnknown: last == "unknown", N: number(last)}
	}
	in.Outcome.Ending = endings[words[0]]
	switch in.Outcome.Ending {
	case Token:
		in.Outcome.Token = number(last)
	case Refused:
		in.Outcome.Code = last
	}
	return in
}

func (s *Server) told(now Ms, words []string) []string {
	switch words[0] {
	case "need":
		return []string{[]string{"dial", "join", "rest"}[s.Need(now)]}
	case "dialled":
		s.Dialled()
	case "failed":
		s.Failed(now, number(words[1]))
	case "close":
		s.Close()
	}
	return nil
}

func come(now Ms, words []string, patience Ms) string {
	stand := map[string]Stand{"taken": SeatIsTaken, "undone": SeatIsUndone}[words[1]]
	if stand == SeatIsFree {
		return "take"
	}
	until, tell := Come(now, stand, number(strings.TrimPrefix(words[2], "wait=")), patience)
	return fmt.Sprintf("wait by=%s %s", ms(until), tells[tell])
}

func ms(some Ms) string {
	if some == Forever {
		return "forever"
	}
	return fmt.Sprint(some)
}

var tells = map[Tell]string{
	NotAcquired: "nil", IsReleased: "released", Lost: "lost", Unavailable: "unavailable", NoReplicas: "noreplicas",
	Cancelled: "cancelled", Closed: "closed",
}

var acts = map[Act]string{
	AskSlot: "slot", Open: "open", AskAlone: "own acquire", Read: "read", Look: "look", Await: "await", Listen: "listen",
	AwaitTurn: "turn", Sleep: "sleep", TakeSeat: "seat", Keep: "keep", Drop: "drop", Undo: "undo", Free: "free",
	Doubt: "doubt", Tied: "tied", Leave: "leave", Done: "done",
}

var requests = map[Request]string{Acquire: "acquire", Queue: "acquire queue", AskPlace: "place", CancelWait: "cancel", Info: "info"}

func (out Output) text() string {
	by := " by=" + ms(out.By)
	switch out.Act {
	case Say:
		switch out.Tell {
		case Granted:
			text := fmt.Sprintf("tell granted %d sent=%d", out.Token, out.Sent)
			if out.Lingers {
				text += " lingers=1"
			}
			return text
		case IsRefused:
			return "tell refused " + out.Code
		}
		return "tell " + tells[out.Tell]
	case Send:
		switch out.Request {
		case Renew:
			return fmt.Sprintf("send renew %d%s", out.Token, by)
		case ReleaseDown:
			return fmt.Sprintf("send release %d %d%s", out.Token, out.Depth, by)
		}
		return "send " + requests[out.Request] + by
	case AskAlone:
		text := acts[out.Act]
		if out.Blocks {
			text += fmt.Sprint(" block=", out.Block)
		}
		if out.Session {
			text += " session"
		}
		if out.Depth > 0 {
			text += fmt.Sprint(" depth=", out.Depth)
		}
		return text + by
	case AskSlot, TakeSeat, Keep, Drop, Undo, Free, Doubt, Tied, Leave, Done:
		return acts[out.Act]
	}
	return acts[out.Act] + by
}
