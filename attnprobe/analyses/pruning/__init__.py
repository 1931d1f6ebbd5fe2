"""Head pruning in the style of Michel, Levy & Neubig 2019 ("Are Sixteen Heads Really …").

`effects`: one head off, all but one, transfer between texts. `importance`: the gradient of gates.
`curve`: heads removed in order. `savings`: what removing them for real saves. `cost`: how long it
will take.
"""
