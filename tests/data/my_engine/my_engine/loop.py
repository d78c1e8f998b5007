class Loop:
    def step(self, work):
        work()
